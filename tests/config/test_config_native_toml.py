"""Ini keys take the native values of TOML that mean the same as their text."""

from __future__ import annotations

import pytest

from pytest_trainsafe.config.read import read_settings

pytestmark = pytest.mark.skipif(
    pytest.version_tuple < (9,), reason="pytest reads native values of TOML since 9.0"
)


@pytest.mark.parametrize(
    ("line", "field", "value"),
    [
        ("trainsafe_max_world_size = 2", "max_world_size", 2),
        ("trainsafe_timeout = 30.5", "timeout", 30.5),
        ("trainsafe_rng = false", "rng", False),
        ("trainsafe_localize = false", "localize", 0.0),
        ('trainsafe_accept = ["moved", "zeros"]', "accept", ("moved", "zeros")),
        ('trainsafe_dtype = ["float64", "float32"]', "dtypes", ("float64", "float32")),
        ("trainsafe_no_cache = true", "no_cache", True),
        ('trainsafe_sweep = ["tp=1,2"]', "sweep", (("tp", ("1", "2")),)),
        ('trainsafe_sweep = "tp=1,2 cp=1"', "sweep", (("tp", ("1", "2")), ("cp", ("1",)))),
        ('trainsafe_max_world_size = "2"', "max_world_size", 2),
    ],
)
@pytest.mark.parametrize("file", ["pyproject.toml", "pytest.toml"])
def test_a_native_value_means_the_same_as_its_text(
    pytester: pytest.Pytester, file: str, line: str, field: str, value: object
) -> None:
    section = "tool.pytest" if file == "pyproject.toml" else "pytest"
    pytester.path.joinpath(file).write_text(f"[{section}]\n{line}\n")

    assert getattr(read_settings(pytester.parseconfig()), field) == value


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("trainsafe_max_world_size = true", "takes an integer >= 1, not 'true'"),
        ("trainsafe_max_world_size = 1.5", "takes an integer >= 1, not '1.5'"),
        ("trainsafe_seed = [1]", "takes one line of text, not [1]"),
        ("trainsafe_accept = [1]", "takes one line of text, not [1]"),
        ("trainsafe_no_cache = 3", "takes true or false; it cannot be read: *"),
        ("trainsafe_sweep = 3", "takes text such as 'tp=1,2 cp=1,2', not 3"),
    ],
)
def test_a_native_value_that_does_not_fit_is_a_usage_error(
    pytester: pytest.Pytester, line: str, words: str
) -> None:
    pytester.path.joinpath("pyproject.toml").write_text(f"[tool.pytest]\n{line}\n")

    result = pytester.runpytest_inprocess()

    assert result.ret == pytest.ExitCode.USAGE_ERROR
    key = line.partition(" ")[0]
    result.stderr.fnmatch_lines([f"ERROR: {key} (ini) {words.replace('[', '[[]')}"])
