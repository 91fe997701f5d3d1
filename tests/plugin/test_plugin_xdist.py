"""With pytest-xdist every worker has the same tests, and the controller reports all of them."""

import pytest

pytest.importorskip("xdist")


def test_workers_run_the_points_that_the_command_line_and_addopts_name(swept, monkeypatch):
    # Only the controller reads addopts; workers parse the rest of the command line again.
    monkeypatch.setenv("PYTEST_ADDOPTS", "-p no:hypothesispytest --trainsafe-sweep cp=2,1")

    result = swept.runpytest_subprocess(
        "-n", "2", "-vvv", "--trainsafe-sweep", "tp=1,2", "layers=8", "test_swept.py"
    )

    result.assert_outcomes(passed=5)
    ran = {line.partition("[tp")[2] for line in result.outlines if "PASSED test_swept.py" in line}
    assert {entry for entry in ran if entry} == {"1-cp2] ", "1-cp1] ", "2-cp2] ", "2-cp1] "}


def test_skips_are_counted_and_a_misspelt_axis_is_an_error_on_the_controller(swept):
    result = swept.runpytest_subprocess("-n", "2", "--trainsafe-sweep", "tp=1,3", "laiers=2")

    assert result.ret != 0
    result.assert_outcomes(passed=4, skipped=2, errors=1)
    result.stdout.fnmatch_lines(
        [
            "*no collected trainsafe test declares the axis 'laiers'; did you mean 'layers'?",
            "2 points skipped: heads=4 is not divisible by tp=3 (2)",
        ]
    )
