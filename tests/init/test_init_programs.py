"""What `--trainsafe-init` says if it is given no program: a usage error, and nothing is written."""

import pytest

PROGRAMS = """
def nothing(): pass
def needs(ctx, layers): pass
class Model: pass
"""


@pytest.fixture
def refused(folder):
    """A function that runs the option in vain, and returns the error."""
    folder.makepyfile(programs=PROGRAMS, broken="import not_installed_anywhere")

    def run(word):
        result = folder.runpytest_inprocess("--trainsafe-init", word)
        assert result.ret == pytest.ExitCode.USAGE_ERROR
        assert {path.name for path in folder.path.glob("[!.]*.[py]*")} == {
            "programs.py",
            "broken.py",
        }
        return result.stderr.str()

    return run


@pytest.mark.parametrize(
    ("word", "parts"),
    [
        ("programs:nothing", ["takes no context", "write def nothing(ctx)", "Script(path)"]),
        ("programs:nothin", ["module 'programs' has no 'nothin'; did you mean 'nothing'?"]),
        ("programs:Model", ["is not a function but type", "top level of a module"]),
        (
            "programs:needs",
            ["needs a value for 'layers'", "a default in the function's definition"],
        ),
        ("programs", ["takes package.module:function, such as 'programs:train'"]),
        ("programs.py:nothing", ["write 'programs:nothing' for a function"]),
        ("absent:train", ["No module named 'absent'", "in which pytest was started"]),
        ("broken:train", ["No module named 'not_installed_anywhere'", "broken.py:1"]),
        ("absent.py", ["there is no script 'absent.py'"]),
        ("", ["takes package.module:function or the path of a script, not ''"]),
    ],
)
def test_what_is_no_program_is_a_usage_error_that_says_what_to_write(refused, word, parts):
    error = refused(word)

    assert all(part in error for part in parts), error


def test_no_test_of_the_project_is_collected_or_run(folder):
    folder.makepyfile(test_other="raise AssertionError('this module was imported')")

    result = folder.runpytest_inprocess("--trainsafe-init", "absent:train")

    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "this module was imported" not in result.stdout.str() + result.stderr.str()
