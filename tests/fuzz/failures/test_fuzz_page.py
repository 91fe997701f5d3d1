"""The page of a fuzz test shows each distinct failure once, and not every failing example."""

from __future__ import annotations

from pytest_trainsafe.report.html.document import read_document
from pytest_trainsafe.report.panels import Section
from pytest_trainsafe.report.sections import MOST_SECTIONS, add, begin, collected, end

#: Two bugs, of tp and of three layers; a passing example has a Section too.
TEST = """
from pytest_trainsafe import TrainsafeFailure, trainsafe_fuzz
from pytest_trainsafe.core.finding import Finding, Pattern
from pytest_trainsafe.core.tensor_id import TensorId
from pytest_trainsafe.judges.contract import FindingsJudgement
from pytest_trainsafe.judges.sections import show

def judge(kind, pattern):
    where = TensorId(0, None, kind, "layers.0.norm", "weight")
    found = Finding(
        verdict="fail", judge="compare", check="wrong", message=f"{kind} {pattern}", where=where,
        pattern=Pattern(pattern, ""),
    )
    show(FindingsJudgement("own", [found]), f"report: {kind} {pattern}")
    raise TrainsafeFailure(f"report: {kind} {pattern}", [found])

@trainsafe_fuzz("program:train", max_examples=40, tp=[1, 2], dp=[1, 2], layers=[1, 2, 3])
def test_it(point):
    if point.size("tp") > 1:
        judge("main_grad", "partial sum")
    if point.layers == 3:
        judge("activation", "scaled")
    show(FindingsJudgement("own"), "")
"""


def test_each_distinct_failure_of_a_fuzz_test_has_one_section(fuzzed) -> None:
    fuzzed.makepyfile(test_it=TEST)
    result = fuzzed.runpytest_inprocess("-p", "no:cacheprovider", "--trainsafe-report=out")
    result.assert_outcomes(failed=1)

    document = read_document(fuzzed.path / "out")
    shown = [s for entry in document.entries for s in entry.sections if s.verdict == "fail"]
    assert sorted(section.text for section in shown) == [
        *("report: activation scaled", "report: main_grad partial sum")
    ]


def test_of_too_many_sections_those_that_fail_are_kept() -> None:
    begin()
    try:
        for number in range(2 * MOST_SECTIONS):
            verdict = "fail" if number == MOST_SECTIONS + 3 else "pass"
            add(Section(judge="own", verdict=verdict, distinct=str(number)))  # type: ignore[arg-type]
        verdicts = [section.verdict for section in collected()]
    finally:
        end()
    assert len(verdicts) == MOST_SECTIONS
    assert verdicts.count("fail") == 1
