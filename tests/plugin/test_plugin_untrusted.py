"""Invalid input is reported as an error of pytest, without a traceback of the plugin.

For annotation files, which ranks read, see tests/end_to_end/test_mistakes.py.
"""

import pytest

OURS = "*pytest_trainsafe?*.py*"


MARKERS = {
    "'os:system', tp=1": "program 'os:system' is not a function but builtin_function_or_method*",
    "'../x:y', tp=1": "program '../x:y' is not an import path; write 'package.module:function'*",
    "'.a:f', tp=1": "program '.a:f' is not an import path; *",
    "'program:train', tp=10**5000": "axis 'tp' takes integers of at most 64 bits, *",
    "'program:train', args={'heads': cyclic}": "args: heads=[[][[][[][[]...]]]] cannot be sent *",
    "'program:train', **{axis: list(range(1, 60)) for axis in ('tp', 'cp', 'dp', 'pp')}": (
        "the axes make 12117361 points (tp: 59 [*] cp: 59 [*] *at most 10000; *"
    ),
}

MARKED = """
import pytest

cyclic = []
cyclic.append(cyclic)

@pytest.mark.trainsafe({})
def test_it():
    pass
"""


def test_an_invalid_marker_is_a_collection_error_of_one_line(project):
    # One run for all: each file is an error of its own.
    project.makepyfile(**{f"test_{i}": MARKED.format(given) for i, given in enumerate(MARKERS)})

    result = project.runpytest_inprocess()

    result.assert_outcomes(errors=len(MARKERS))
    for number, message in enumerate(MARKERS.values()):
        result.stdout.fnmatch_lines([f"test_{number}.py::test_it: {message}"])
    result.stdout.no_fnmatch_line(OURS)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["tp=" + "9" * 5000],
            "--trainsafe-sweep tp=999*: axis 'tp' takes integers of at most 64*",
        ),
        # The second word is first tried as a path, and is too long for one.
        (["tp=1", "cp=" + "9" * 5000], "--trainsafe-sweep cp=999*: axis 'cp' takes integers of *"),
        (["tp=1", "tp=2"], "--trainsafe-sweep names axis 'tp' twice (tp=1 and tp=2)*"),
    ],
)
def test_an_invalid_sweep_word_is_a_usage_error_without_a_traceback(swept, words, message):
    result = swept.runpytest_inprocess("--trainsafe-sweep", *words)

    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: {message}"])
    result.stderr.no_fnmatch_line(OURS)


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("cache-size", "9" * 5000, "takes a size such as 500MB or 2GB, not '999*"),
        ("slots", "9" * 5000, "takes an integer of at most 100000, not '999*"),
        ("max-world-size", "٣", "takes an integer >= 1, not '٣'"),
        ("timeout", "1e300", "takes at most 31536000 seconds, not '1e300'"),
        ("timeout", "１２", "takes a positive number of seconds, not '１２'"),
        ("timeout", "1_0", "takes a positive number of seconds, not '1_0'"),
        ("localize", "1.1.1", "takes a number of seconds, or off, not '1.1.1'"),
        ("seed", "9" * 5000, "takes an integer from 0 to 2[*][*]32 - 1, not '999*"),
        ("dtype", "x" * 5000, "takes one of float64, *, not 'xxx*"),
        ("keep-traces", "x" * 300, "takes the path of a folder, and 'xxx* is too long"),
        (
            "keep-traces",
            "program.py",
            "takes the path of a folder, and 'program.py' is not a folder",
        ),
    ],
)
def test_an_invalid_option_value_is_a_usage_error(project, option, value, message):
    result = project.runpytest_inprocess(f"--trainsafe-{option}={value}")

    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: --trainsafe-{option} {message}"])
    result.stderr.no_fnmatch_line(OURS)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "trainsafe_no_cache = perhaps",
            "trainsafe_no_cache (ini) takes true or false; it cannot*",
        ),
        ("trainsafe_sweep = tp='1", "trainsafe_sweep (ini) takes words such as *; it cannot be*"),
        ("trainsafe_sweep = tp=0", "trainsafe_sweep (ini) tp=0: axis 'tp' takes an integer >= 1*"),
        ("trainsafe_timeout = nan", "trainsafe_timeout (ini) takes a positive number of seconds*"),
    ],
)
def test_an_invalid_ini_value_is_a_usage_error(project, write_ini, line, message):
    write_ini(line)

    result = project.runpytest_inprocess()

    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: {message}"])
    result.stderr.no_fnmatch_line(OURS)


@pytest.mark.parametrize("line", ["trainsafe_sweep = [1]", "trainsafe_no_cache = 3"])
def test_a_toml_value_of_the_wrong_type_is_a_usage_error(pytester, line):
    pytester.makepyprojecttoml(f"[tool.pytest.ini_options]\n{line}")

    result = pytester.runpytest_inprocess()

    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: {line.split()[0]} (ini) takes *"])
    result.stderr.no_fnmatch_line(OURS)


def test_a_toml_list_in_place_of_text_is_a_usage_error(pytester):
    pytester.makepyprojecttoml("[tool.pytest.ini_options]\ntrainsafe_seed = [1]")

    # In a process of its own, because the outer run would show the warning of pytest about it.
    result = pytester.runpytest_subprocess()

    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: trainsafe_seed (ini) takes one line of text, *"])
