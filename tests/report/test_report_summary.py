"""The terminal summary shows the summaries that tests attach as a table."""

import json

import pytest

from pytest_trainsafe.report.run import summary
from pytest_trainsafe.report.run.outcome import FirstDifference, Outcome
from pytest_trainsafe.report.run.summary import table_lines, totals
from pytest_trainsafe.report.run.table import tables
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
    "test_*.py::test_judged",
    "  tp  verdict  error/allowed  tensors  seconds",
    "  2   pass     0.5            312/310  4.2",
    "1 point judged: 1 pass; launch 3.0 s, train 1.2 s",
    "1 point skipped: heads=4 is not divisible by tp=3 (1)",
]


def test_the_summary_has_a_row_per_judged_point_and_counts_the_skipped(judging):
    judging.runpytest_inprocess("-W", "default").stdout.fnmatch_lines(EXPECTED, consecutive=True)


def test_the_summary_includes_points_of_xdist_workers(judging):
    pytest.importorskip("xdist")

    judging.runpytest_inprocess("-n", "1").stdout.fnmatch_lines(EXPECTED, consecutive=True)


def test_each_folder_with_reports_is_named(judging):
    """Workers of pytest-xdist have one each."""
    judging.makeconftest(
        f"""
        def pytest_runtest_call(item):
            for worker in ("gw0", "gw1"):
                item.user_properties.append(("{PROPERTY}_report", f"base/{{worker}}/reports/a.txt"))
        """
    )
    lines = ["reports: base/gw0/reports", "         base/gw1/reports"]
    judging.runpytest_inprocess().stdout.fnmatch_lines(lines, consecutive=True)


def test_quiet_runs_have_the_summary_and_very_quiet_ones_none(judging):
    quiet = judging.runpytest_inprocess("-q", "-W", "default")
    quiet.stdout.fnmatch_lines(EXPECTED, consecutive=True)
    judging.runpytest_inprocess("-qq").stdout.no_fnmatch_line("*judged: *")


def test_quiet_runs_name_the_causes(judging):
    first = {"judge": "compare", "check": "norm", "where": "w · update · step 0", "pattern": ""}
    failing = {**JUDGED, "verdict": "fail", "first": {**first, "tensor": "w · update"}}
    judging.makepyfile(
        f"""
        import pytest
        from pytest_trainsafe.sweep.point_summary import attach_summary

        @pytest.mark.trainsafe("program:train", tp=[2])
        def test_judged(request):
            attach_summary(request.node, {failing!r})
            raise AssertionError
        """
    )

    judging.runpytest_inprocess("-q").stdout.fnmatch_lines(
        ["1 failed; 1 cause", "1. *: w · update", "   points    1: tp=2"]
    )


def test_junit_files_keep_the_summary_as_json(judging):
    from xml.etree import ElementTree

    judging.runpytest_inprocess("--junit-xml=out.xml")

    tree = ElementTree.parse(judging.path / "out.xml")
    values = [p.get("value") for p in tree.iter("property") if p.get("name") == PROPERTY]
    assert [json.loads(value)["verdict"] for value in values if value] == ["pass", "skipped"]


def outcome(nodeid, verdict="pass", worst=0.5, **more):
    axes = tuple(word.split("=") for word in more.pop("point", "").split())
    return Outcome(nodeid, verdict, worst=worst, tensors=(1,), axes=axes, **more)


def test_failures_are_listed_before_the_largest_errors_and_the_rest_is_counted(monkeypatch):
    monkeypatch.setattr(summary, "MAX_ROWS", 3)
    judged = [
        outcome("a.py::t[tp1]", worst=0.1, point="tp=1"),
        outcome("a.py::t[tp2]", worst=0.2, point="tp=2"),
        outcome("b.py::t[tp1]", worst=0.9, point="tp=1"),
        outcome("b.py::t[tp2]", "fail", 1e6, point="tp=2"),
    ]

    lines = table_lines(tables(judged, 3), detailed=False)

    assert [line.split()[:2] for line in lines] == [
        ["b.py::t"],
        ["tp", "verdict"],
        ["2", "fail"],
        ["1", "pass"],
        ["a.py::t"],
        ["tp", "verdict"],
        ["2", "pass"],
        ["...", "and"],
    ]
    assert lines[-1] == "... and 1 more (-v shows all)"


def test_points_that_are_all_shown_are_in_the_order_of_the_sweep():
    judged = [
        outcome("a.py::t[tp4]", worst=0.1, point="tp=4"),
        outcome("a.py::t[tp1]", worst=0.2, point="tp=1"),
        outcome("a.py::t[tp2]", "fail", 1e6, point="tp=2"),
        outcome("b.py::t[tp1]", worst=0.9, point="tp=1"),
    ]

    found = tables(judged)

    assert [table.test for table in found] == ["a.py::t", "b.py::t"]
    assert [row[0] for row in found[0].rows] == ["4", "1", "2"]


def test_axes_that_do_not_vary_are_shown_once_in_the_heading():
    judged = [outcome(f"a.py::t[{n}]", point=f"tp={n} dtype=bfloat16") for n in (1, 2)]

    lines = table_lines(tables(judged), detailed=False)

    assert lines[0] == "a.py::t (dtype=bfloat16)"
    assert lines[1].split()[0] == "tp"


def test_rows_that_the_axes_do_not_tell_apart_have_the_parameters_of_their_tests():
    judged = [
        outcome(f"a.py::t[dp{n}-{which}]", point=f"dp={n} dtype=float64")
        for n in (1, 2)
        for which in ("split", "order")
    ]

    (found,) = tables(judged)

    assert found.columns[:2] == ("test", "dp")
    assert [row[:2] for row in found.rows] == [
        ("dp1-split", "1"),
        ("dp1-order", "1"),
        ("dp2-split", "2"),
        ("dp2-order", "2"),
    ]


def test_the_worst_tensor_is_shown_only_in_detailed_tables():
    judged = [outcome("folder/c.py::t", "fail", 2.0, worst_name="w (float32)")]

    assert "    worst: w (float32)" in table_lines(tables(judged), detailed=True)
    assert "    worst: w (float32)" not in table_lines(tables(judged), detailed=False)


def test_no_row_is_wider_than_80_columns_with_long_or_many_axes():
    axes = " ".join(f"axis_number_{n}={'v' * 60}{n}" for n in range(9))
    judged = [outcome(f"t[{n}]", point=f"{axes} tp={n}") for n in (1, 2)]

    lines = table_lines(tables(judged), detailed=False)[1:]

    assert all(len(line) <= 80 for line in lines), lines
    assert lines[0].split()[0] == "tp"

    judged = [
        outcome(f"t[{n}]", point=" ".join(f"axis_number_{m}=value{n}" for m in range(9)))
        for n in (1, 2)
    ]
    lines = table_lines(tables(judged), detailed=False)[1:]
    assert all(len(line) <= 80 for line in lines), lines
    assert lines[1].split()[0] == "axis_number_0=value1"


def test_control_characters_of_names_do_not_reach_the_terminal():
    judged = [outcome("t\x1b[31m", worst_name="w\x1b]0;x\x07", point="tp=\x1b[2J")]

    text = "\n".join(table_lines(tables(judged), detailed=True))

    assert "\x1b" not in text
    assert "\x07" not in text


def test_totals_say_how_long_ranks_of_other_test_runs_were_waited_for():
    held_up: PointSummary = {**JUDGED, "waited": 0.75}
    (line,) = totals([held_up, held_up])
    assert line.endswith("train 2.5 s; waited 1.5 s for ranks that other test runs held")
    assert "waited" not in totals([held_up])[0]


def test_totals_add_up_seconds_over_tests():
    assert totals([JUDGED, JUDGED]) == ["2 points judged: 2 pass; launch 6.0 s, train 2.5 s"]


@pytest.mark.parametrize(
    ("first", "said"),
    [
        (
            FirstDifference(where="step 0", message="broken rule: a: called 0 times\n  kept by: b"),
            "step 0: broken rule: a: called 0 times",
        ),
        (
            FirstDifference(where="step 0, weight · param", tensor="weight · param"),
            "weight · param",
        ),
        (FirstDifference(message="two rows\nof text"), "two rows"),
        (FirstDifference(), "fail"),
    ],
)
def test_a_failure_without_a_tensor_is_named_by_what_is_wrong(first, said):
    assert summary.what(Outcome("test_a", "fail", first=first)) == said
