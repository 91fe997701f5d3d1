"""The first line of a failure is its finding: in the short summary, JUnit files and annotations."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

import pytest

from pytest_trainsafe.core.finding import CallSubject, Finding, Pattern
from pytest_trainsafe.core.tensor_id import TensorId
from pytest_trainsafe.errors import LONGEST_LINE, ArgumentError, TrainsafeError, in_one_line
from pytest_trainsafe.judges.compare.comparison import Comparison
from pytest_trainsafe.judges.compare.declarations.proposal import Proposal
from pytest_trainsafe.judges.compare.fault.clause import Clause
from pytest_trainsafe.judges.compare.fault.located import Located
from pytest_trainsafe.judges.compare.judgement import Advice, LadderJudgement, RungJudgement
from pytest_trainsafe.judges.contract import FindingsJudgement
from pytest_trainsafe.judges.first_line import first_line
from pytest_trainsafe.judges.joint import JointJudgement

BIAS = TensorId(0, None, "main_grad", "", "bias")
SUM = Pattern(
    "partial sum",
    "the ranks of dp hold partial sums: rank0 + rank1 equals the reference",
    "dp",
    "an all-reduce over dp is missing for this gradient",
    short="partial sums over dp, all-reduce missing",
)


def finding(where: TensorId | None = BIAS, message: str = "", **fields: object) -> Finding:
    given = {"verdict": "fail", "judge": "compare", "check": "norm"}
    return Finding(**{**given, **fields}, where=where, message=message)  # type: ignore[arg-type]


def doubt(check: str, message: str, where: TensorId | None = None) -> Finding:
    return finding(where, message, verdict="inconclusive", judge="vacuity", check=check)


def rung(*findings: Finding, **fields: object) -> RungJudgement:
    comparison = Comparison("float64", list(findings), compared=Counter())
    given: dict[str, object] = {"doubts": [], "accepted": [], **fields}
    return RungJudgement("float64", "float64", comparison, **given)  # type: ignore[arg-type]


def ladder(judged: RungJudgement, located: Located | None = None) -> LadderJudgement:
    return LadderJudgement("train", "tp=2", [judged], located=located)


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_it_names_the_tensor_the_pattern_and_the_line(here: Path) -> None:
    wrong = finding(pattern=SUM, error=0.5, allowed=1e-15, source=f"{here}/mymlp.py:53")

    line = first_line(ladder(rung(wrong)))

    assert line == "bias · main_grad: partial sums over dp, all-reduce missing, at mymlp.py:53"


def test_the_located_code_comes_before_the_class_of_the_module(here: Path) -> None:
    wrong = finding(pattern=SUM, source=f"{here}/mymlp.py:53")
    located = Located((), f"{here}/mymlp.py:9", (Clause("all_reduce"),))

    assert first_line(ladder(rung(wrong), located)).endswith(", at mymlp.py:9")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        (
            {"error": 1e-3, "allowed": 1e-5},
            "bias · main_grad: an error of 0.001, 100 times what rounding allows",
        ),
        ({"error": 1.0, "allowed": 0.0}, "bias · main_grad: differs, and no rounding explains it"),
        ({"message": "first\nsecond"}, "bias · main_grad: first"),
        ({"where": None, "message": "ranks disagree"}, "ranks disagree"),
    ],
)
def test_without_a_pattern_it_has_the_message_or_the_error(
    fields: dict[str, object], words: str
) -> None:
    assert first_line(ladder(rung(finding(**fields)))) == words  # type: ignore[arg-type]


def test_a_wrong_declaration_names_no_line_of_code() -> None:
    wrong = finding(pattern=SUM, source="model.py:3")

    assert "model.py" not in first_line(ladder(rung(wrong, explained=True)))


def test_missing_layouts_come_before_what_differs() -> None:
    lacking = (("parameters", "a"), ("parameters", "b"), ("modules", "c"))
    proposal = Proposal({"parameters": {"a": {}}}, 3, None, lacking=lacking)
    judged = rung(finding(), advice=Advice(proposal=proposal))

    assert first_line(ladder(judged)) == "layouts are missing for 2 parameters and 1 module"

    judged.rest = rung(finding(pattern=SUM))
    assert first_line(ladder(judged)) == (
        "layouts are missing for 2 parameters and 1 module; also bias · main_grad: partial sums "
        "over dp, all-reduce missing"
    )


def test_an_inconclusive_verdict_has_its_one_cause() -> None:
    doubts = [doubt("gradients", "every gradient is zero"), doubt("zeros", "9 weights are zeros")]

    line = first_line(ladder(rung(doubts=doubts)))

    assert line == "inconclusive: 9 weights are zeros (zeros)"


def test_a_test_with_several_judges_starts_with_the_one_whose_verdict_is_worst() -> None:
    doubtful = ladder(rung(doubts=[doubt("zeros", "9 weights are zeros")]))
    call = CallSubject("torch.optim.Adam.step")
    learned = finding(None, "broken rule: a\n  usual cause: b", judge="learn", subject=call)
    joint = JointJudgement([doubtful, FindingsJudgement("learn", [learned])])

    assert first_line(joint) == "torch.optim.Adam.step: broken rule: a"


def test_a_clean_judgement_has_no_line() -> None:
    assert first_line(FindingsJudgement("replay")) == ""
    assert first_line(ladder(rung())) == ""


def test_an_exception_in_one_line_is_printable_short_and_names_its_class() -> None:
    assert in_one_line(ArgumentError("tp takes\n1")) == "ArgumentError: tp takes"
    assert in_one_line(ValueError()) == "ValueError:"
    wide = TrainsafeError("report")
    wide.line = f"a\x1b[31m\n::error::{'b' * LONGEST_LINE}"
    line = in_one_line(wide)
    assert line.startswith("a\\x1b[31m ::error::b")
    assert len(line.splitlines()) == 1
    assert len(line) <= LONGEST_LINE + len("\\x1b")


MODEL = """
import os
import signal

import torch


def train(ctx, fault="none"):
    net = torch.nn.Linear(4, 4).to(ctx.dtype)
    ctx.initialize(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    ctx.watch(net, optimizer)
    if fault == "killed" and ctx.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if fault == "raises" and ctx.rank == 1:
        raise ValueError("no samples are left")
    if fault == "alone" and ctx.world_size == 1:
        raise ValueError("no samples are left")
    with ctx.step():
        for index in ctx.microbatches(2):
            with ctx.microbatch(index):
                torch.manual_seed(index)
                loss = net(torch.randn(5, 4, dtype=ctx.dtype)).square().mean()
                ctx.loss(loss)
                (loss / 2).backward()
        if ctx.world_size > 1:
            for name, parameter in net.named_parameters():
                if fault == "sum" and name == "bias":
                    continue
                torch.distributed.all_reduce(parameter.grad, group=ctx.group("dp"))
        optimizer.step()
    if fault == "late" and ctx.rank == 1:
        torch.distributed.barrier()
"""

TESTS = """
import pytest
from model import train
from pytest_trainsafe import assert_rng, assert_trainsafe

FAULTS = ["none", "sum", "raises", "alone", "killed", "late"]


@pytest.mark.trainsafe(train, dp=[2], fault=FAULTS, dtype=["float64"])
def test_it(candidate_trace, reference_trace):
    assert_trainsafe(candidate_trace, reference_trace)


@pytest.mark.trainsafe(train, dp=[1], dtype=["float64"])
def test_arguments(candidate_trace):
    candidate_trace.at("float63")


def test_own(tmp_path):
    assert tmp_path is None
"""

#: What the first line of each test says; it starts with this.
LINES = {
    "test_it[dp2-faultsum-float64]": ("bias · main_grad: partial sums over dp, all-reduce missing"),
    "test_it[dp2-faultraises-float64]": (
        "rank 1 raised ValueError at model.py:15: no samples are left"
    ),
    "test_it[dp2-faultalone-float64]": (
        "rank 0 raised ValueError at model.py:17: no samples are left, in the reference, on a "
        "single device, in float64"
    ),
    "test_it[dp2-faultkilled-float64]": "rank 1 of 2 was killed by SIGKILL (signal 9)",
    "test_it[dp2-faultlate-float64]": "collective mismatch: ",
    "test_arguments[dp1-float64]": "ArgumentError: candidate_trace.at takes one of ",
}


# One worker, with its own import of torch, sends one failure of each kind.
SENT = ("-n", "1", "-k", "faultnone or faultsum or faultraises or arguments or own")


@pytest.mark.parametrize(("options", "failed"), [((), 7), (SENT, 4)], ids=["here", "worker"])
def test_terminal_junit_file_and_annotations_have_the_same_line(
    pytester: pytest.Pytester,
    monkeypatch: pytest.MonkeyPatch,
    without_hypothesis: None,
    shared_fork_server: None,
    options: tuple[str, ...],
    failed: int,
) -> None:
    if options:
        pytest.importorskip("xdist")
    pytester.makepyfile(model=MODEL, test_run=TESTS)
    # pytest repeats whole messages on CI, and cuts lines to the width of a terminal elsewhere.
    monkeypatch.setenv("CI", "true")
    monkeypatch.setenv("GITHUB_ACTIONS", "true")

    result = pytester.runpytest_inprocess(
        "--trainsafe-localize=off", "--junitxml=out.xml", *options
    )

    result.assert_outcomes(passed=1, failed=failed)
    begin = "FAILED test_run.py::"
    listed = [line.removeprefix(begin) for line in result.outlines if line.startswith(begin)]
    terminal = dict(line.split(" - ", 1) for line in listed)
    cases = {
        case.get("name"): failure.get("message")
        for case in ElementTree.parse(pytester.path / "out.xml").iter("testcase")
        if (failure := case.find("failure")) is not None
    }
    titles = [line for line in result.outlines if line.startswith("::error ")]
    assert len(cases) == failed
    for test in LINES.keys() & cases.keys():
        assert terminal[test].startswith(LINES[test])
        assert cases[test] == terminal[test]
    for line in (LINES["test_it[dp2-faultsum-float64]"], "ArgumentError: candidate_trace.at takes"):
        escaped = line.replace(":", "%3A").replace(",", "%2C")
        assert any(f"title=trainsafe%3A model.train%3A {escaped}" in title for title in titles)
    assert terminal["test_own"].startswith("AssertionError: assert PosixPath(")
    if not options:
        # A mismatch has the line of the call that the other ranks did not make.
        late = 1 + MODEL.strip().splitlines().index("        torch.distributed.barrier()")
        result.stdout.fnmatch_lines([f"   look at   model.py:{late}"])
    # The report is as it was.
    result.stdout.fnmatch_lines(["E  *TrainsafeFailure: trainsafe: model.train at dp=2 * differs*"])
