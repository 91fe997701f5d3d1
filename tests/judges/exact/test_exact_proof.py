"""`assert_proved_equivalent`: proved with a certificate, refuted, or not covered and why."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pytest_trainsafe.errors import TraceError
from pytest_trainsafe.judges.exact.certificate import read

PROGRAM = '''
"""A network of two layers, of which tp ranks hold columns of the first and rows of the second."""

import torch
import torch.distributed as dist

LAYOUTS = {
    "parameters": {"up.weight": {"tp_dim": 0}, "down.weight": {"tp_dim": 1}},
    "modules": {"up": {"output": {"tp_dim": 1}}},
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


class Down(torch.nn.Linear):
    def forward(self, x):
        y = super().forward(torch.relu(x))
        return y if self.group is None else Summed.apply(y, self.group)


def train(ctx, bug="", unknown=False):
    group, size = ctx.group("tp"), ctx.point.size("tp")
    net = torch.nn.Sequential()
    net.add_module("up", torch.nn.Linear(4, 8 // size, bias=False, dtype=ctx.dtype))
    net.add_module("down", Down(8 // size, 3, bias=False, dtype=ctx.dtype))
    net.down.group = None if bug == "unreduced" or size == 1 else group
    ctx.initialize(net, annotations=LAYOUTS)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    ctx.watch(net, optimizer, annotations=LAYOUTS)
    generator = torch.Generator().manual_seed(7)
    for number in range(2):
        with ctx.step():
            optimizer.zero_grad()
            for index in ctx.microbatches(2):
                with ctx.microbatch(index):
                    x = torch.randn(5, 4, generator=generator, dtype=ctx.dtype)
                    y = net(x)
                    if unknown:
                        y = y + torch.special.i0(y)
                    loss = y.square().mean()
                    if bug == "tiny" and size > 1:
                        loss = loss + loss * 1e-25
                    ctx.loss(loss)
                    loss.backward()
            norm = sum(p.grad.square().sum() for p in net.parameters())
            if size > 1:
                dist.all_reduce(norm, group=group)
            norm = norm.sqrt()
            # one side branches, the other clamps: the same function
            if size == 1:
                scale = 0.01 / norm if norm > 0.01 else torch.ones_like(norm)
            else:
                scale = (0.01 / norm).clamp(max=1.0)
            for p in net.parameters():
                p.grad.mul_(scale)
            optimizer.step()
'''

TEST = """
import pytest
from program import train
from pytest_trainsafe import assert_proved_equivalent


@pytest.mark.trainsafe(train, tp=2)
def test_clean(candidate_trace, reference_trace):
    assert_proved_equivalent(candidate_trace, reference_trace)


@pytest.mark.trainsafe(train, tp=2, bug="unreduced")
def test_unreduced(candidate_trace, reference_trace):
    assert_proved_equivalent(candidate_trace, reference_trace)


@pytest.mark.trainsafe(train, tp=2, bug="tiny")
def test_tiny(candidate_trace, reference_trace):
    assert_proved_equivalent(candidate_trace, reference_trace)


@pytest.mark.trainsafe(train, tp=2, unknown=True)
def test_unknown(candidate_trace, reference_trace):
    assert_proved_equivalent(candidate_trace, reference_trace)


@pytest.mark.trainsafe(train, tp=2, bug="tiny")
def test_accepted(candidate_trace, reference_trace):
    assert_proved_equivalent(candidate_trace, reference_trace, accept=["exact:unconfirmed"])
"""


KINDS = {"activation", "activation_grad", "loss", "main_grad", "optimizer_state", "param_grad"}


@pytest.fixture
def project(pytester: pytest.Pytester) -> pytest.Pytester:
    pytester.makepyfile(program=PROGRAM, test_it=TEST)
    return pytester


def test_a_program_is_proved_refuted_or_not_covered(
    project: pytest.Pytester, without_hypothesis: None, shared_fork_server: None
) -> None:
    result = project.runpytest_subprocess("--junitxml=report.xml")

    result.assert_outcomes(passed=2, failed=3)
    text = result.stdout.str()
    assert "the ranks of tp hold partial sums: rank0 + rank1 equals the reference (exactly)" in text
    assert "confirmed     float64 refutes it too" in text
    assert "exact numbers differ first at" in text
    assert "float64 agrees up to rounding" in text
    assert "aten.i0 has no semantics for exact numbers" in text
    assert "5 points judged: 2 pass, 1 fail, 2 inconclusive" in text

    [path] = Path(project.path).parent.glob("**/*test_clean*.certificate.json")
    assert f"certificate: {path}" in text
    assert str(path) in (project.path / "report.xml").read_text()
    certificate = read(path)
    assert certificate.error <= 1e-9
    assert len(certificate.seeds) >= 2
    assert certificate.candidate.ranks == 2
    assert certificate.candidate.decisions[0] > 0
    assert "c10d.allreduce_" in certificate.candidate.operators
    assert "c10d.allreduce_" not in certificate.reference.operators
    assert certificate.semantics["aten.clamp"].startswith("pytest_trainsafe.arithmetic.semantics")
    names = {kind for name in certificate.tensors for kind in KINDS if kind in name}
    assert names == KINDS


def test_an_edited_certificate_is_refused(tmp_path: Path) -> None:
    from pytest_trainsafe.judges.exact.certificate import Certificate, Side, write

    side = Side(point="tp=2", ranks=2, decisions=(1, 1), operators={"aten.mm": 3})
    made = Certificate(
        program="p:train", arguments={}, candidate=side, reference=side, seeds=(0, 1), hashed=5,
        error=1e-12, tensors={"0/loss": "ab"}, semantics={"aten.mm": "m"}, assumes=(),
        not_covered=("x",), versions={},
    )  # fmt: skip
    path = write(made, tmp_path, "test_it.py::test_clean[tp2]")
    assert msgspec_equal(read(path), made)

    fields = json.loads(path.read_text())
    for name, value in {"not_covered": [], "error": 0.0, "seeds": [0], "tensors": {}}.items():
        path.write_text(json.dumps(fields | {name: value}))
        with pytest.raises(TraceError, match="was edited"):
            read(path)
    for content in ("", "{}", "[1]", json.dumps(fields | {"format": "other"}), "{" * 100_000):
        path.write_text(content)
        with pytest.raises(TraceError):
            read(path)


def msgspec_equal(found: object, made: object) -> bool:
    """Whether two certificates agree in all fields but the hash."""
    from msgspec import structs

    return structs.asdict(found) | {"digest": ""} == structs.asdict(made)  # type: ignore[arg-type]
