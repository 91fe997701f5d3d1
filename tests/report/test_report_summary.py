"""The terminal summary: what tests attach, as a table."""

import json

import pytest

from pytest_trainsafe.report import summary
from pytest_trainsafe.report.summary import table, totals
from pytest_trainsafe.sweep.point_summary import PROPERTY, PointSummary

JUDGED: PointSummary = {
    "point": "tp2",
    "verdict": "pass",
    "rungs": [
        {"dtype": "float64", "tensors": 312, "worst": 0.25, "worst_name": "layers.0.w"},
        {"dtype": "float32", "tensors": 310, "worst": 0.5, "worst_name": "layers.1.w"},
    ],
    "seconds": {"launch": 3.0, "train": 1.25},
}


def failed(point, worst):
    rung = {"dtype": "float32", "tensors": 1, "worst": worst, "worst_name": "w"}
    return (point, {"point": point, "verdict": "fail", "rungs": [rung]})


@pytest.fixture
def judging(project):
    """A project whose tests attach a summary, as an assertion does."""
    project.makepyfile(
        f"""
        import pytest
        from pytest_trainsafe.sweep.point_summary import attach_summary

        @pytest.mark.trainsafe("program:train", tp=[2, 3])
        def test_judged(request):
            attach_summary(request.node, {JUDGED!r})
        """
    )
    return project


EXPECTED = [
    "*= trainsafe =*",
    "verdict  tensors  error/allowed  seconds  test",
    "pass     312/310  0.5            4.2      test_*::test_judged[[]tp2]",
    "1 point judged: 1 pass; launch 3.0 s, train 1.2 s",
    "1 point skipped: heads=4 is not divisible by tp=3 (1)",
]


def test_the_summary_has_a_row_per_judged_point_and_counts_the_skipped(judging):
    judging.runpytest_inprocess().stdout.fnmatch_lines(EXPECTED, consecutive=True)


def test_the_summary_crosses_from_xdist_workers(judging):
    pytest.importorskip("xdist")

    judging.runpytest_subprocess("-n", "2").stdout.fnmatch_lines(EXPECTED, consecutive=True)


def test_quiet_runs_have_no_summary(judging):
    judging.runpytest_inprocess("-q").stdout.no_fnmatch_line("*judged: *")


def test_junit_files_keep_the_summary_as_json(judging):
    from xml.etree import ElementTree

    judging.runpytest_inprocess("--junit-xml=out.xml")

    tree = ElementTree.parse(judging.path / "out.xml")
    values = [p.get("value") for p in tree.iter("property") if p.get("name") == PROPERTY]
    assert [json.loads(value)["verdict"] for value in values if value] == ["pass", "skipped"]


def test_failures_lead_then_the_largest_errors_and_the_rest_is_counted(monkeypatch):
    monkeypatch.setattr(summary, "MAX_ROWS", 2)
    judged = [("a[tp2]", JUDGED), failed("b", 2.0), failed("folder/c.py::t", 1e6)]

    lines = table(judged, detailed=False)

    assert [line.split()[0] for line in lines] == ["verdict", "fail", "fail", "..."]
    assert lines[1].endswith("c.py::t")
    assert lines[3] == "... and 1 more (-v shows all)"


def test_the_whole_ids_and_the_worst_tensors_are_for_the_curious():
    lines = table([failed("folder/c.py::t", 2.0)], detailed=True)

    assert lines[1].endswith("folder/c.py::t, w (float32)")


def test_totals_add_up_seconds_over_tests():
    assert totals([JUDGED, JUDGED]) == ["2 points judged: 2 pass; launch 6.0 s, train 2.5 s"]
