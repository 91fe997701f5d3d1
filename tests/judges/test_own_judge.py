"""A project adds its own judge by a hook, and the verdict of that judge counts."""

from __future__ import annotations

import pytest

from pytest_trainsafe.errors import DeclarationError
from pytest_trainsafe.judges.registry import judges

JUDGE = '''
"""A judge of twenty lines: training runs twice, and every loss of the repetition is below LIMIT."""

from msgspec.structs import replace

from pytest_trainsafe.core.finding import Finding
from pytest_trainsafe.core.finding import StepSubject
from pytest_trainsafe.judges.contract import FindingsJudgement
from pytest_trainsafe.runs.specs import spec_of

LIMIT = 10.0


class LossIsBounded:
    name = "bounded"

    def required_runs(self, case):
        return [replace(spec_of(case, "candidate", case.rungs[0]), repeat=1)]

    def judge(self, case, runs, options):
        [spec] = self.required_runs(case)
        trace = runs.get(spec).trace
        assert trace.path != runs.candidate.at(spec.dtype).path
        found = []
        for id, event in trace.ranks[0].tensors.items():
            if id.kind == "loss" and (loss := trace.load(0, event).item()) > LIMIT:
                found.append(
                    Finding(
                        verdict="fail", judge=self.name, check="bounded:loss",
                        message=f"the loss is {loss:.0f}, and may be {LIMIT:.0f}",
                        subject=StepSubject(id.step), evidence=(("loss", loss),),
                    )
                )
        return FindingsJudgement(self.name, found, ["gradients are not bounded"])
'''

TEST = """
import pytest
import torch

from pytest_trainsafe import TrainsafeFailure, assert_trainsafe


def train(ctx, scale=1):
    net = torch.nn.Linear(4, 3).to(ctx.dtype)
    ctx.initialize(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    ctx.watch(net, optimizer)
    with ctx.step():
        for index in ctx.microbatches(2):
            with ctx.microbatch(index):
                torch.manual_seed(index)
                loss = scale * net(torch.randn(5, 4, dtype=ctx.dtype)).square().mean()
                ctx.loss(loss)
                loss.backward()
        if ctx.point.size("dp") > 1:
            for parameter in net.parameters():
                torch.distributed.all_reduce(parameter.grad, group=ctx.group("dp"))
        optimizer.step()


@pytest.mark.trainsafe(train, dp=[2], dtype=["float64"])
def test_bounded(candidate_trace, reference_trace):
    assert_trainsafe(candidate_trace, reference_trace)


@pytest.mark.trainsafe(train, dp=[2], dtype=["float64"], scale=1000000)
def test_unbounded(candidate_trace, reference_trace):
    with pytest.raises(TrainsafeFailure) as caught:
        assert_trainsafe(candidate_trace, reference_trace)
    [finding, *_] = caught.value.findings
    assert (finding.judge, finding.check) == ("bounded", "bounded:loss")
    assert str(finding.about) == "step 0"
    assert dict(finding.evidence)["loss"] > 10
    raise caught.value
"""


@pytest.fixture
def project(pytester: pytest.Pytester) -> pytest.Pytester:
    pytester.makepyfile(judge=JUDGE, test_it=TEST)
    return pytester


def added(project: pytest.Pytester, path: str) -> None:
    project.makeconftest(f"def pytest_trainsafe_judges(config):\n    return [{path!r}]\n")


def test_a_projects_own_judge_gets_the_runs_it_requests_and_can_fail_the_test(
    project: pytest.Pytester, without_hypothesis: None, shared_fork_server: None
) -> None:
    added(project, "judge:LossIsBounded")

    result = project.runpytest_inprocess()

    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(
        [
            "*trainsafe: test_it.train at dp=2 * fails",
            "*bounded *step 0: the loss is * and may be 10 (bounded:loss)",
            "*compare *its verdict is pass",
            "*rerun *test_it.py::test_unbounded*",
            "note: gradients are not bounded",
        ]
    )


def test_a_judge_must_be_given_by_an_import_path(project: pytest.Pytester) -> None:
    added(project, "judge.py")

    result = project.runpytest_inprocess("-q")

    result.stderr.fnmatch_lines(["*pytest_trainsafe_judges returned 'judge.py'; it must*"])


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("missing_module:Judge", "cannot be imported or instantiated"),
        ("collections:Missing", "cannot be imported or instantiated"),
        ("collections:OrderedDict", "has no name and no required_runs and no judge"),
        ("pytest_trainsafe.judges.compare.judge:CompareJudge", "two judges have the name"),
    ],
)
def test_an_invalid_judge_is_refused_with_the_reason(path: str, words: str) -> None:
    with pytest.raises(DeclarationError, match=words):
        judges([path])
