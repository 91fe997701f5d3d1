"""--trainsafe-sweep: where its words may be, what they change, and the errors for mistakes."""

import shlex

import pytest

pytestmark = pytest.mark.usefixtures("without_hypothesis")

NARROWED = ["tp2-cp1", "layers2", "layers8"]


def collected(result):
    return [line.partition("[")[2].rstrip("]") for line in result.outlines if "::" in line]


@pytest.mark.parametrize(
    "line",
    [
        "--trainsafe-sweep tp=2 cp=1",
        "--trainsafe-sweep tp=2 cp=1 test_swept.py",
        "test_swept.py --trainsafe-sweep tp=2 cp=1",
        "--trainsafe-sweep tp=2 test_swept.py cp=1",
        "--trainsafe-sweep tp=2 --trainsafe-sweep cp=1 test_swept.py",
        "--trainsafe-sweep=tp=2 cp=1 test_swept.py",
        "-p no:cacheprovider --trainsafe-sweep tp=2 cp=1 -k test",
        "--trainsafe-sweep 'tp=2 cp=1' test_swept.py",
        "test_swept.py --trainsafe-sweep='tp=2 cp=1'",
    ],
)
def test_sweep_words_may_be_anywhere_after_the_option(swept, line):
    result = swept.runpytest_inprocess("--collect-only", "-q", *shlex.split(line))

    assert collected(result) == NARROWED


def test_a_test_id_after_the_words_stays_a_test_id(swept):
    result = swept.runpytest_inprocess(
        "--collect-only", "-q", "--trainsafe-sweep", "tp=2", "cp=1", "test_swept.py::test_mesh"
    )

    assert collected(result) == ["tp2-cp1"]


def test_an_existing_path_that_looks_like_a_word_stays_a_path(swept):
    swept.mkdir("cp=1").joinpath("test_inside.py").write_text("def test_inside(): pass")
    swept.makepyfile(test_swept="")

    result = swept.runpytest_inprocess("--trainsafe-sweep", "tp=2", "cp=1", "--collect-only", "-q")

    result.stdout.fnmatch_lines(["cp=1/test_inside.py::test_inside"])


def test_sweep_words_do_not_hide_the_conftest_of_testpaths(swept, write_ini):
    swept.mkdir("suite").joinpath("conftest.py").write_text(
        "def pytest_addoption(parser): parser.addoption('--from-suite', action='store_true')"
    )
    swept.path.joinpath("test_swept.py").rename(swept.path / "suite" / "test_swept.py")
    write_ini("testpaths = suite")

    result = swept.runpytest_inprocess(
        "--collect-only", "-q", "--trainsafe-sweep", "tp=2", "cp=1", "--from-suite"
    )

    assert collected(result) == NARROWED


def test_addopts_may_contain_sweep_words(swept, monkeypatch):
    monkeypatch.setenv("PYTEST_ADDOPTS", "--trainsafe-sweep tp=2 cp=1")

    result = swept.runpytest_inprocess("--collect-only", "-q", "test_swept.py")

    assert collected(result) == NARROWED


def test_the_ini_file_may_contain_sweep_words_and_the_command_line_overrides_them(swept, write_ini):
    write_ini("trainsafe_sweep = tp=2 cp=1")

    assert collected(swept.runpytest_inprocess("--collect-only", "-q")) == NARROWED
    result = swept.runpytest_inprocess("--collect-only", "-q", "--trainsafe-sweep", "layers=4")
    assert collected(result) == ["tp1-cp1", "tp1-cp2", "tp2-cp1", "tp2-cp2", "layers4"]


def test_sweep_words_work_if_the_plugin_is_loaded_with_the_option_p(swept, monkeypatch):
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")

    result = swept.runpytest_subprocess(
        *[
            "-p",
            "pytest_trainsafe.plugin",
            "--trainsafe-sweep",
            "tp=2",
            "cp=1",
            "--collect-only",
            "-q",
        ]
    )

    assert collected(result) == NARROWED


def test_the_command_line_may_give_values_that_the_test_does_not_declare(swept):
    result = swept.runpytest_inprocess("--collect-only", "-q", "--trainsafe-sweep", "tp=4,1")

    assert collected(result)[:4] == ["tp4-cp1", "tp4-cp2", "tp1-cp1", "tp1-cp2"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("tp=1 tp=2", "--trainsafe-sweep names axis 'tp' twice (tp=1 and tp=2); *"),
        ("tp=", "--trainsafe-sweep: 'tp=' has an empty value; write tp=VALUE or *"),
        ("tp=two", "--trainsafe-sweep tp=two: axis 'tp' takes an integer >= 1, not 'two'"),
        (
            "dtype=fp8",
            "*axis 'dtype' takes one of float64, float32, bfloat16, float16, exact, not 'fp8'",
        ),
        ("test_swept.py", "--trainsafe-sweep takes words such as tp=1,2 *, not 'test_swept.py'"),
        ("", "*argument --trainsafe-sweep: expected one argument"),
    ],
)
def test_an_invalid_sweep_word_is_a_usage_error(swept, words, message):
    result = swept.runpytest_inprocess("--trainsafe-sweep", *words.split())

    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"*{message}"])


def test_an_axis_that_no_collected_test_declares_is_an_error(swept):
    result = swept.runpytest_inprocess("--trainsafe-sweep", "laiers=2")

    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.stdout.fnmatch_lines(
        [
            "--trainsafe-sweep: *no* test declares the axis 'laiers'; did you mean 'layers'?",
            "  declared axes: tp, cp, layers",
            "  a sweep gives other values to axes of markers: add laiers=[[]...[]] to one",
        ]
    )


def test_an_axis_that_exists_is_not_taken_for_a_misspelling_of_another(swept):
    result = swept.runpytest_inprocess("--trainsafe-sweep", "pp=2")

    result.stdout.fnmatch_lines(["*no collected trainsafe test declares the axis 'pp'"])


def test_a_sweep_of_dtypes_that_no_test_declares_names_the_option_for_dtypes(swept):
    result = swept.runpytest_inprocess("--trainsafe-sweep", "dtype=exact")

    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.stdout.fnmatch_lines(["*add dtype=[[]...[]] to one, or *with --trainsafe-dtype"])


def test_an_axis_that_only_some_tests_declare_does_not_change_the_others(swept):
    result = swept.runpytest_inprocess("--trainsafe-sweep", "layers=4")

    result.assert_outcomes(passed=5)


def test_an_axis_that_only_unselected_tests_declare_is_an_error(swept):
    result = swept.runpytest_inprocess("--trainsafe-sweep", "layers=2", "test_swept.py::test_mesh")

    result.stdout.fnmatch_lines(["*declares the axis 'layers'*", "  declared axes: tp, cp"])


def test_sweep_words_without_any_trainsafe_test_are_an_error(pytester):
    pytester.makepyfile("def test_it(): pass")

    result = pytester.runpytest_inprocess("--trainsafe-sweep", "tp=2")

    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*no collected trainsafe test declares the axis 'tp'*"])


def test_sweep_words_of_the_ini_file_are_no_error_without_a_trainsafe_test(pytester):
    pytester.makeini("[pytest]\ntrainsafe_sweep = tp=2\n")
    pytester.makepyfile("def test_it(): pass")

    pytester.runpytest_inprocess().assert_outcomes(passed=1)


def test_a_command_line_that_leaves_no_valid_point_at_all_is_an_error(swept):
    result = swept.runpytest_inprocess("--trainsafe-sweep", "tp=3", "test_swept.py::test_mesh")

    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.stdout.fnmatch_lines(
        [
            "the command line leaves no valid point in any collected test:",
            "  tp=3 cp=1: heads=4 is not divisible by tp=3",
        ]
    )


def test_the_error_of_an_invalid_value_of_a_parameter_names_the_test(swept):
    result = swept.runpytest_inprocess("--trainsafe-sweep", "layers=many")

    result.stdout.fnmatch_lines(
        ["test_swept.py::test_layers: axis 'layers' takes an integer, not 'many'"]
    )
