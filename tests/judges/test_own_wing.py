"""A project adds a whole wing: an instrument, an event, a judge with an artefact, its sentences."""

from __future__ import annotations

import pytest

from tests.support.end_to_end import inner_pytest

INSTRUMENT = """
from contextlib import contextmanager

import msgspec

from pytest_trainsafe.record.instrument import Instrument
from pytest_trainsafe.trace.events import register


@register
class Microbatch(msgspec.Struct, frozen=True, tag="microbatch_of_a_project"):
    step: int
    index: int


class Counting(Instrument):
    name = "counting"

    def __init__(self, recorder):
        self.recorder = recorder

    @contextmanager
    def in_microbatch(self, index):
        yield
        self.recorder.writer.add(Microbatch(self.recorder.clock.step, index))
"""

JUDGE = """
from msgspec.structs import replace

from pytest_trainsafe.core.finding import Finding
from pytest_trainsafe.judges.contract import FindingsJudgement
from pytest_trainsafe.runs.specs import spec_of
from wing.instrument import Microbatch


class CountedJudgement(FindingsJudgement):
    text = "wing.text"


class Counted:
    name = "counted"
    checks = {"counted:few": "fewer than eight micro-batches were trained"}

    def required_runs(self, case):
        spec = spec_of(case, "candidate", case.rungs[0])
        return [replace(spec, instruments=("wing.instrument:Counting",))]

    def judge(self, case, runs, options):
        [spec] = self.required_runs(case)
        trace = runs.get(spec).trace
        seen = [event for rank in trace.ranks for event in rank.events_of(Microbatch)]
        certificate = case.nodeid.replace("/", "_").replace(":", "_") + ".certificate"
        with open(certificate, "w") as file:
            file.write(str(len(seen)))
        few = Finding(
            verdict="inconclusive", judge=self.name, check="counted:few",
            message=f"only {len(seen)} micro-batches were trained",
        )
        found = [few] if len(seen) < 8 else []
        made = CountedJudgement(self.name, found, artefacts={"certificate": certificate})
        return made.accepting(options.accept)
"""

TEXT = """
def message(judgement):
    return f"counted: {judgement.findings[0].message}"


def first_line(judgement):
    return f"too few: {judgement.findings[0].message}"
"""

TEST = """
import pytest
import torch

from pytest_trainsafe import assert_trainsafe


def train(ctx, steps=1):
    net = torch.nn.Linear(4, 3).to(ctx.dtype)
    ctx.initialize(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    ctx.watch(net, optimizer)
    for number in range(steps):
        with ctx.step():
            optimizer.zero_grad()
            for index in ctx.microbatches(2):
                with ctx.microbatch(index):
                    torch.manual_seed(2 * number + index)
                    loss = net(torch.randn(5, 4, dtype=ctx.dtype)).square().mean()
                    ctx.loss(loss)
                    loss.backward()
            if ctx.point.size("dp") > 1:
                for parameter in net.parameters():
                    torch.distributed.all_reduce(parameter.grad, group=ctx.group("dp"))
            optimizer.step()


@pytest.mark.trainsafe(train, dp=[2], dtype=["float64"], steps=4)
def test_many(candidate_trace, reference_trace):
    assert_trainsafe(candidate_trace, reference_trace)


@pytest.mark.trainsafe(train, dp=[2], dtype=["float64"])
def test_few(candidate_trace, reference_trace):
    assert_trainsafe(candidate_trace, reference_trace)


@pytest.mark.trainsafe(train, dp=[2], dtype=["float64"], accept=["counted:few"])
def test_few_that_are_accepted(candidate_trace, reference_trace):
    assert_trainsafe(candidate_trace, reference_trace)
"""


@pytest.fixture
def project(pytester: pytest.Pytester) -> pytest.Pytester:
    wing = pytester.mkpydir("wing")
    (wing / "instrument.py").write_text(INSTRUMENT)
    (wing / "judge.py").write_text(JUDGE)
    (wing / "text.py").write_text(TEXT)
    pytester.makeconftest(
        "def pytest_trainsafe_judges(config):\n    return ['wing.judge:Counted']\n"
    )
    pytester.makepyfile(test_it=TEST)
    return pytester


@pytest.mark.parametrize("workers", [(), ("-n", "1")], ids=["one process", "a worker"])
def test_a_wing_of_a_project_records_judges_is_accepted_by_name_and_leaves_an_artefact(
    project: pytest.Pytester,
    without_hypothesis: None,
    shared_fork_server: None,
    workers: tuple[str, ...],
) -> None:
    result = inner_pytest.run_in(project, "--junitxml=report.xml", *workers)

    result.assert_outcomes(passed=2, failed=1)
    text = result.stdout.str()
    assert "counted: only 2 micro-batches were trained" in text
    assert "- too few: only 2 micro-batches" in text
    assert "counted:few, which is accepted: only 2 micro-batches were trained" in text
    for name in ("many", "few", "few_that_are_accepted"):
        certificate = f"test_it.py__test_{name}[dp2-float64"
        assert f"certificate: {certificate}" in text
        assert certificate in (project.path / "report.xml").read_text()
    [made] = project.path.glob("test_it.py__test_many*.certificate")
    assert made.read_text() == "8"


def test_a_check_that_no_judge_declares_is_refused(
    project: pytest.Pytester, without_hypothesis: None
) -> None:
    result = project.runpytest_inprocess("--trainsafe-accept=counted:many")

    result.stderr.fnmatch_lines(["*, counted:few, not 'counted:many'*"])
