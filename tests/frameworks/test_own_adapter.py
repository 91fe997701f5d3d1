"""A pytest hook adds an adapter for an unknown framework: its engine, layouts and loss scale."""

from __future__ import annotations

import pytest

from pytest_trainsafe.record.adapter import activate
from pytest_trainsafe.record.clock import ProgramError
from tests.support.end_to_end import inner_pytest

FRAMEWORK = '''
"""A small framework: a layer with its own tp attribute, and an engine with a loss scale."""

import torch
import torch.distributed as dist

SCALE = 8.0


class Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        x = x.clone()
        dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(ctx, grad):
        return grad, None


class Enter(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        grad = grad.clone()
        dist.all_reduce(grad, group=ctx.group)
        return grad, None


class Rows(torch.nn.Module):
    def __init__(self, wide, out, group):
        super().__init__()
        self.group, size = group, group.size()
        self.weight = torch.nn.Parameter(torch.empty(out, wide // size))
        self.weight.toy_cut = 1

    def forward(self, x):
        mine = Enter.apply(x, self.group).chunk(self.group.size(), -1)[self.group.rank()]
        return Sum.apply(mine @ self.weight.T, self.group)


class Engine:
    def __init__(self, net):
        self.net, self.sgd = net, torch.optim.SGD(net.parameters(), lr=0.1)

    def backward(self, loss):
        (loss * SCALE).backward()

    def unscale(self):
        for parameter in self.net.parameters():
            parameter.grad /= SCALE

    def update(self):
        self.sgd.step()
        self.sgd.zero_grad()

    def step(self):
        self.unscale()
        self.update()
'''

ADAPTER = """
import framework

from pytest_trainsafe.core.layout import Shard
from pytest_trainsafe.record.adapter import Adapter


class Toy(Adapter):
    def engine(self, model):
        return Watched(model) if isinstance(model, framework.Engine) else None

    def layout(self, name, parameter, sizes):
        dim = getattr(parameter, "toy_cut", None)
        return None if dim is None else (Shard(dim, "tp"),)


class Watched:
    def __init__(self, engine):
        self.engine, self.module, self.optimizer = engine, engine.net, engine.sgd

    def annotations(self, names):
        return {}

    def reduces_in(self):
        return ""

    def attach(self):
        pass

    def listen(self, before, after):
        def step():
            self.engine.unscale()
            before(False)
            self.engine.update()
            after()

        self.engine.step = step

    def unscaled(self, grad):
        return grad / framework.SCALE

    def skipped(self):
        return ""
"""

TEST = """
import framework
import pytest
import torch

from pytest_trainsafe import assert_trainsafe


def train(ctx):
    net = torch.nn.Sequential(torch.nn.Linear(4, 8), framework.Rows(8, 3, ctx.group("tp")))
    net.to(ctx.dtype)
    ctx.initialize(net)
    engine = framework.Engine(net)
    ctx.watch(engine, None)
    for step in range(2):
        with ctx.step():
            with ctx.microbatch(0):
                torch.manual_seed(step)
                loss = engine.net(torch.randn(5, 4, dtype=ctx.dtype)).square().mean()
                ctx.loss(loss)
                engine.backward(loss)
            engine.step()


@pytest.mark.trainsafe(train, tp=2)
def test_train(candidate_trace, reference_trace):
    assert_trainsafe(candidate_trace, reference_trace)
"""


@pytest.fixture
def project(pytester: pytest.Pytester) -> pytest.Pytester:
    pytester.makepyfile(framework=FRAMEWORK, adapter=ADAPTER, test_it=TEST)
    return pytester


def use_adapter(project: pytest.Pytester, path: str) -> None:
    project.makeconftest(f"def pytest_trainsafe_adapters(config):\n    return [{path!r}]\n")


def test_a_correct_training_with_a_custom_adapter_passes(
    project: pytest.Pytester, without_hypothesis: None, shared_fork_server: None
) -> None:
    use_adapter(project, "adapter:Toy")

    inner_pytest.run_in(project).assert_outcomes(passed=1)


def test_an_adapter_must_be_given_as_an_import_path(
    project: pytest.Pytester, without_hypothesis: None
) -> None:
    use_adapter(project, "adapter.py")

    result = project.runpytest_inprocess()

    result.stderr.fnmatch_lines(["*pytest_trainsafe_adapters returned 'adapter.py'; it must*"])


@pytest.mark.parametrize("path", ["missing_module:Toy", "collections:Missing"])
def test_the_error_names_an_adapter_that_cannot_be_imported(path: str) -> None:
    with pytest.raises(ProgramError, match=f"the adapter '{path}' cannot be created"):
        activate([path])


def test_an_adapter_must_derive_from_the_adapter_class() -> None:
    with pytest.raises(ProgramError, match="'collections:OrderedDict' is a OrderedDict; derive"):
        activate(["collections:OrderedDict"])
