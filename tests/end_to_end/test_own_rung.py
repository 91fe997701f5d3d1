"""A project adds a rung whose numbers are integers modulo a prime, by a hook and a module alone.

Nothing is rounded in it, so no tolerance is involved: a correct program passes with equal values,
and partial sums are recognised because they add up to the reference exactly.
"""

from __future__ import annotations

import pytest

from tests.support.end_to_end.inner_pytest import run_in

RUNG = '''
"""Integers modulo a prime, in float64 tensors, whose products of matrices are exact."""

import contextlib
import math
from fractions import Fraction

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from pytest_trainsafe.core.rungs.rung import Rung

#: Products of two residues have 40 bits, and float64 adds 2**13 of them exactly.
PRIME = 2**20 - 3


def residue(value):
    value = Fraction(value)
    return value.numerator * pow(value.denominator, -1, PRIME) % PRIME


def rational(value):
    """The fraction of small numbers with this residue (Wang 1981)."""
    above, below, last, coefficient = PRIME, value, 0, 1
    while below >= math.isqrt(PRIME // 2):
        quotient = above // below
        above, below = below, above - quotient * below
        last, coefficient = coefficient, last - quotient * coefficient
    return float(Fraction(below, coefficient)) if coefficient else None


class Modular:
    exact = True

    def add(self, left, right):
        return (left + right) % PRIME

    def subtract(self, left, right):
        return (left - right) % PRIME

    def divide(self, numbers, by):
        return numbers * residue(Fraction(1, by)) % PRIME

    def scale(self, numbers, by):
        return numbers * residue(by) % PRIME

    def ratio(self, numbers, reference):
        ratios = {
            int(a) * pow(int(b), -1, PRIME) % PRIME if b else None
            for a, b in zip(numbers.flatten().tolist(), reference.flatten().tolist())
            if a or b
        }
        return rational(*ratios) if len(ratios) == 1 and None not in ratios else None

    def equal(self, left, right):
        return left == right

    def is_zero(self, numbers):
        return numbers == 0

    def norm(self, numbers):
        return float((numbers != 0).sum()) ** 0.5

    def encode(self, numbers):
        high, low = numbers.long() >> 10, numbers.long() & 1023
        return torch.stack((high, low)).to(torch.int16)

    def decode(self, stored, shape):
        high, low = stored.long()
        return (high << 10 | low).double().reshape(shape)


MODULAR = Modular()

#: Operators that move numbers, and those of rings, whose results are reduced.
MOVES = set(
    "alias arange clone copy_ detach empty empty_like expand fill_ lift_fresh new_empty "
    "new_zeros ones_like scatter select slice t transpose unsqueeze view zero_ zeros "
    "zeros_like _to_copy _unsafe_view allgather_ broadcast_".split()
)
RING = {"add", "add_", "mm", "mul", "mul_", "neg", "sub", "sum"}


class Mode(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name, kwargs = func.overloadpacket.__name__, kwargs or {}
        if name == "allreduce_":
            tensors, group = args[0], torch.distributed.ProcessGroup.unbox(args[1])
            group.allreduce(tensors).wait()
            for each in tensors:
                each.remainder_(PRIME)
            return torch.ops.c10d.broadcast_(tensors, args[1], 0, 0, True, -1)
        if name in RING:
            args = [residue(each) if isinstance(each, (int, float)) else each for each in args]
            if "alpha" in kwargs:
                kwargs["alpha"] = residue(kwargs["alpha"])
            result = func(*args, **kwargs)
            return result.remainder_(PRIME) if name.endswith("_") else result % PRIME
        if name == "mean":
            assert len(args) == 1
            return MODULAR.divide(args[0].sum(), args[0].numel())
        if name == "div":
            by = args[1] if isinstance(args[1], (int, float)) else rational(int(args[1]))
            return args[0] * residue(1 / Fraction(by)) % PRIME
        result = func(*args, **kwargs)
        floats = isinstance(result, torch.Tensor) and result.is_floating_point()
        assert name in MOVES or not floats, f"{name} has no meaning modulo a prime"
        return result


class Modulo(Rung):
    @contextlib.contextmanager
    def around(self, run):
        def enter(values):
            with _disable_current_modes():
                found = [residue(each) for each in values.flatten().tolist()]
                return torch.tensor(found, dtype=torch.float64).view_as(values)

        with Mode():
            yield enter


MODULO = Modulo(
    "modulo", "float64", arithmetic_path="residues:MODULAR", decided_by="float64"
)
'''

CONFTEST = """
def pytest_trainsafe_rungs(config):
    return {"modulo": "residues:MODULO"}
"""

PROGRAM = '''
"""A linear model y = x A B, of which tp ranks hold columns of A and rows of B."""

import numpy
import torch
import torch.distributed as dist

LAYOUTS = {
    "parameters": {"first.weight": {"tp_dim": 1}, "second.weight": {"tp_dim": 0}},
    "modules": {
        "first": {"output": {"tp_dim": 1}},
        "choose": {"output": {"decision": True}, "optional": True},
    },
}


class Summed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        x = x.clone()
        dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(ctx, grad):
        return grad, None


class Multiply(torch.nn.Module):
    def __init__(self, rows, columns, dtype, after):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.empty(rows, columns, dtype=dtype))
        self.after = after

    def forward(self, x):
        return self.after(x @ self.weight)


class Choose(torch.nn.Module):
    def forward(self, scores):
        return scores.topk(2, -1).indices


class Routed(torch.nn.Module):
    """Keeps the two largest values of each row."""

    def __init__(self):
        super().__init__()
        self.choose = Choose()

    def forward(self, y):
        return y * torch.zeros_like(y).scatter(-1, self.choose(y), 1.0)


def train(ctx, bug=False, routed=False):
    group, size = ctx.group("tp"), ctx.point.size("tp")
    reduce = (lambda y: y) if bug or size == 1 else (lambda y: Summed.apply(y, group))
    net = torch.nn.Sequential()
    net.add_module("first", Multiply(4, 8 // size, ctx.dtype, lambda y: y))
    net.add_module("second", Multiply(8 // size, 5, ctx.dtype, reduce))
    if routed:
        net.add_module("routed", Routed())
    ctx.initialize(net, annotations=LAYOUTS)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.25)
    ctx.watch(net, optimizer, annotations=LAYOUTS)
    for number in range(2):
        with ctx.step():
            optimizer.zero_grad()
            for index in ctx.microbatches(2):
                with ctx.microbatch(index):
                    data = torch.from_numpy(numpy.arange(12.0).reshape(3, 4))
                    y = net(ctx.enter(data) + 5 * index + number)
                    loss = (y * y).mean()
                    ctx.loss(loss)
                    loss.backward()
            optimizer.step()
'''

MODULO = """
import pytest
import torch
from program import train

from pytest_trainsafe import TrainsafeFailure, assert_trainsafe


def values(trace, id):
    return [trace.load(rank.rank, event) for rank, event in trace.holders(id)]


@pytest.mark.trainsafe(train, tp=2)
def test_clean(candidate_trace, reference_trace):
    assert_trainsafe(candidate_trace, reference_trace)
    trace = candidate_trace.at("modulo")
    events = [(rank, e) for rank in trace.ranks for e in rank.tensors.values()]
    gradients = [pair for pair in events if pair[1].id.kind == "param_grad"]
    assert len(gradients) == 2 * 2 * 2 * 2  # ranks, steps, micro-batches, parameters
    for rank, event in gradients:
        assert (event.dtype, event.stored.dtype) == ("float64", "int16")
        assert event.stored.shape == (2, *event.shape)
        values = trace.load(rank.rank, event)
        assert torch.equal(values, values.round() % (2**20 - 3))
        assert values.max() > 1000  # reals would be small


@pytest.mark.trainsafe(train, tp=2, routed=True)
def test_decisions(candidate_trace, reference_trace):
    assert_trainsafe(candidate_trace, reference_trace)
    reals = reference_trace.at("float64")
    decided = [id for id in reals.ids() if id.kind == "decision" and "scores" not in id.name]
    assert len(decided) == 2 * 2  # steps and micro-batches
    spec = candidate_trace.replaying(reference_trace.decided("modulo")).spec("modulo")
    trace = candidate_trace.runs.get(spec).trace
    routed = [id for id in trace.ids() if (id.kind, id.path) == ("activation", "routed.output")]
    for choice, output in zip(decided, routed, strict=True):
        [chosen] = values(reals, choice)
        for kept in values(trace, output):
            assert torch.equal(kept != 0, torch.zeros(3, 5).scatter(-1, chosen, 1.0) != 0)
"""


#: A test of each rung.
BOTH = """
import pytest
from program import train

from pytest_trainsafe import TrainsafeFailure, assert_trainsafe


@pytest.mark.trainsafe(train, tp=2)
def test_equal(candidate_trace, reference_trace):
    assert_trainsafe(candidate_trace, reference_trace)


@pytest.mark.trainsafe(train, tp=2, bug=True)
def test_bug(candidate_trace, reference_trace):
    with pytest.raises(TrainsafeFailure, match="an all-reduce over tp is missing") as caught:
        assert_trainsafe(candidate_trace, reference_trace)
    finding = next(f for f in caught.value.findings if f.pattern is not None)
    assert (finding.judge, finding.dtype) == ("compare", DTYPE)
    assert (finding.where.path, finding.where.kind) == ("second.output", "activation")
    assert (finding.pattern.name, finding.pattern.axis) == ("partial sum", "tp")
    assert finding.pattern.text.endswith("rank0 + rank1 equals the reference (exactly)")
    assert finding.allowed == 0
    assert "look at       program.py:" in str(caught.value)
"""


@pytest.fixture
def project(pytester: pytest.Pytester) -> pytest.Pytester:
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(residues=RUNG, program=PROGRAM)
    return pytester


def test_a_program_is_judged_modulo_a_prime_without_tolerance(
    project: pytest.Pytester, without_hypothesis: None, shared_fork_server: None
) -> None:
    project.makepyfile(test_it=MODULO, test_bug=f"DTYPE = 'modulo'\n{BOTH}")

    result = run_in(project, "--trainsafe-dtype", "modulo")

    result.assert_outcomes(passed=4)
    result.stdout.fnmatch_lines(["trainsafe: dtype modulo, rungs modulo"])


def test_the_same_program_is_judged_on_the_exact_numbers_of_the_package(
    project: pytest.Pytester, without_hypothesis: None, shared_fork_server: None
) -> None:
    project.makepyfile(test_bug=f"DTYPE = 'exact'\n{BOTH}")

    result = run_in(project, "--trainsafe-dtype", "exact")

    result.assert_outcomes(passed=2)
