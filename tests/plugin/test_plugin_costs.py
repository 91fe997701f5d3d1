"""Installed but unused, the plugin imports no slow package.

A program given as an import path is imported at collection, for its signature.  The
imports of the program do not count; the plugin adds no slow import to them.
"""

import json
import sys

import pytest

HEAVY = ("torch", "numpy", "rich", "msgspec", "safetensors", "yaml", "filelock", "xxhash")

SHOW = """
import json, sys

def pytest_unconfigure():
    heavy = [name for name in {heavy!r} if name in sys.modules]
    ours = [name for name in sys.modules if name.startswith("pytest_trainsafe")]
    open("modules.json", "w").write(json.dumps([heavy, ours]))
"""


def modules_after(project, *arguments):
    project.makeconftest(SHOW.format(heavy=HEAVY))
    result = project.runpytest_subprocess(*arguments)
    assert result.ret == 0
    heavy, ours = json.loads(project.path.joinpath("modules.json").read_text())
    return heavy, ours


def test_a_suite_without_trainsafe_tests_imports_nothing_heavy(pytester):
    pytester.makepyfile("def test_it(): pass")

    heavy, ours = modules_after(pytester)

    assert heavy == []
    # The reader of markers and the rules load with the first marked test.
    assert "pytest_trainsafe.config.settings" in ours
    assert "pytest_trainsafe.sweep.collect" not in ours


@pytest.mark.parametrize("arguments", [(), ("--collect-only",)])
def test_running_marked_tests_that_train_nothing_imports_nothing_heavy(swept, arguments):
    heavy, ours = modules_after(swept, *arguments)

    assert heavy == []
    assert "pytest_trainsafe.sweep.collect" in ours


def test_importing_the_package_imports_none_of_its_submodules(pytester):
    script = (
        "import sys; before = set(sys.modules); import pytest_trainsafe; "
        "print(*(set(sys.modules) - before))"
    )
    result = pytester.run(sys.executable, "-c", script)

    imported = result.outlines[0].split()
    assert "pytest_trainsafe" in imported
    assert [name for name in imported if name.startswith("pytest_trainsafe.")] == []


@pytest.mark.parametrize("marked", [True, False], ids=["marked tests", "none"])
def test_the_garbage_collector_skips_what_was_imported_once_marked_tests_run(pytester, marked):
    mark = "@pytest.mark.trainsafe('program:train', tp=[1])" if marked else ""
    pytester.makepyfile(program="def train(ctx): pass")
    pytester.makepyfile(f"import gc, pytest\n{mark}\ndef test_it(): assert gc.get_freeze_count()")

    result = pytester.runpytest_subprocess("-p", "no:hypothesispytest")

    result.assert_outcomes(passed=int(marked), failed=int(not marked))
