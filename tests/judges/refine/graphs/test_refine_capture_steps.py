"""Captures of clipping, accumulation, experts over ep and DTensor are proved, their bugs not."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.nn import functional

from pytest_trainsafe.judges.refine.graphs.modules import capture, untraced
from pytest_trainsafe.judges.refine.problem.declared import stated_problem
from pytest_trainsafe.judges.refine.prove import Proof, Refutation, prove

COALESCED = dist.distributed_c10d._coalescing_manager


def drawn(*shape, grad=False):
    return torch.randn(shape, dtype=torch.float64, requires_grad=grad)


def outcome(program, alone, held, relation):
    """The proof or refutation of a program of (rank, ranks) on one device and on two ranks."""
    sequential = capture(program(0, 1), alone, name="sequential")
    ranks = [capture(program(rank, 2), held, rank=rank, ranks=2) for rank in range(2)]
    return prove(stated_problem(sequential, ranks, relation))


def clipped_step(clip_before_reduction):
    """Four micro-batches, whose gradients are added, averaged over dp, clipped, and applied."""

    def program(rank, ranks):
        def clip(gradient):
            parameter = nn.Parameter(torch.zeros_like(gradient))
            parameter.grad = gradient
            nn.utils.clip_grad_norm_([parameter], 0.1)
            return parameter.grad

        def step(given):
            batches = given["x"].chunk(4) if ranks == 1 else (given["a"], given["b"])
            total = torch.zeros_like(given["w"])
            for batch in batches:
                loss = torch.tanh(batch @ given["w"]).square().mean() / len(batches)
                total = total + torch.autograd.grad(loss, given["w"])[0]
            if clip_before_reduction:
                total = clip(total)
            if ranks > 1:
                dist.all_reduce(total)
                total = total / ranks
            total = total if clip_before_reduction else clip(total)
            return {"new": (given["w"] - 0.1 * total).detach()}

        return step

    return program


@pytest.mark.parametrize("early", [False, True])
def test_clipping_and_accumulation(early):
    w = drawn(4, 3, grad=True)
    found = outcome(
        clipped_step(early),
        {"w": w, "x": drawn(8, 4)},
        {"w": w, "a": drawn(2, 4), "b": drawn(2, 4)},
        {"mesh": {"dp": 2}, "inputs": {"w": "replica", "x": "concat 0 over dp, concat 0 of a, b"}},
    )
    assert isinstance(found, Refutation if early else Proof)


@pytest.mark.parametrize("planted", [False, True])
def test_a_result_that_is_written_into_by_a_view_afterwards(planted):
    def program(rank, ranks):
        def step(given):
            y = given["x"] * given["w"]
            if ranks == 1 or not planted:
                y.view(-1).mul_(0.5)
            return {"y": y}

        return step

    def arguments(ranks):
        return {"x": drawn(4 // ranks, 3), "w": drawn(3)}

    relation = {"mesh": {"dp": 2}, "inputs": {"x": "concat 0", "w": "replica"}}
    found = outcome(program, arguments(1), arguments(2), relation)
    assert isinstance(found, Refutation if planted else Proof)


@pytest.mark.parametrize("planted", ["", "scale", "reduction"])
def test_gradients_in_a_bucket_are_results_with_what_the_bucket_holds_in_the_end(planted):
    """A gradient is a view of the bucket, which is reduced and divided after it was written."""

    def program(rank, ranks):
        def step(given):
            bucket = torch.zeros(8, dtype=torch.float64)
            grads = {"a": bucket[:4], "b": bucket[4:]}
            for name, grad in grads.items():
                grad.add_((given["x"] * given[name]).sum(0) / len(given["x"]))
            if ranks > 1 and planted != "reduction":
                with COALESCED():
                    for part in (bucket[:3], bucket[3:]):
                        dist.all_reduce(part)
            if ranks > 1 and planted != "scale":
                bucket /= ranks
            return {f"grad {name}": grad for name, grad in grads.items()}

        return step

    def arguments(ranks):
        return {"x": drawn(4 // ranks, 4), "a": drawn(4), "b": drawn(4)}

    found = outcome(program, arguments(1), arguments(2), {
        "mesh": {"dp": 2}, "inputs": {"x": "concat 0", "a, b": "replica"},
    })  # fmt: skip
    assert isinstance(found, Refutation if planted else Proof)


def scatter(part, whole):
    """reduce_scatter_tensor, which newer releases of torch call by another name."""
    getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)(part, whole)


def gather(whole, part):
    getattr(dist, "all_gather_single", dist.all_gather_into_tensor)(whole, part)


@pytest.mark.parametrize("planted", [False, True])
def test_buckets_that_are_scattered_and_gathered_at_once(planted):
    """As a distributed optimizer does: each rank updates its part of each bucket."""

    def program(rank, ranks):
        def step(given):
            whole = [given["x"].sum(0) * given[name] for name in ("a", "b")]
            if ranks == 1:
                return whole
            parts = [each.new_empty(2) for each in whole]
            with COALESCED():
                for part, each in zip(parts, whole, strict=True):
                    scatter(part, each)
            results = [each.new_empty(4) for each in whole]
            with COALESCED():
                for result, part in zip(results, parts[::-1] if planted else parts, strict=True):
                    gather(result, part)
            return results

        return step

    def arguments(ranks):
        return {"x": drawn(4 // ranks, 4), "a": drawn(4), "b": drawn(4)}

    found = outcome(program, arguments(1), arguments(2), {
        "mesh": {"dp": 2}, "inputs": {"x": "concat 0", "a, b": "replica"},
    })  # fmt: skip
    assert isinstance(found, Refutation if planted else Proof)


EXPERTS, CAPACITY, WIDTH, TOKENS = 4, 3, 5, 4


def experts(given, planted, ranks):
    """One expert for each token, with a capacity, so that all messages are equally long."""
    x = given["x"]
    top, which = torch.softmax(x @ given["router"], -1).max(-1)
    hot = functional.one_hot(which, EXPERTS)
    place = (hot.cumsum(0) - 1) * hot
    kept = (place < CAPACITY) * hot
    slot = functional.one_hot((place * kept).sum(-1), CAPACITY)
    mask = (kept[:, :, None] * slot[:, None, :]).to(x.dtype)
    sent = torch.einsum("tec,td->ecd", mask, x)
    if ranks > 1:
        sent = exchanged(sent, EXPERTS // ranks, ranks)
    said = torch.bmm(torch.relu(torch.bmm(sent, given["up"])), given["down"])
    if ranks > 1:
        parts = said.view(EXPERTS // ranks, ranks, CAPACITY, WIDTH)
        if planted != "order":
            parts = parts.transpose(0, 1)
        said = exchanged(parts.reshape(EXPERTS, CAPACITY, WIDTH).contiguous(), 0, ranks)
    weight = 1.0 if planted == "weight" and ranks > 1 else top[:, None, None]
    return torch.einsum("tec,ecd->td", mask * weight, said)


def exchanged(tokens, own, ranks):
    """The tokens for a rank's own experts, or, if `own` is 0, those of its own tokens."""
    out = torch.empty_like(tokens)
    dist.all_to_all_single(out, tokens)
    if not own:
        return out
    return out.view(ranks, own, CAPACITY, WIDTH).transpose(0, 1).reshape(own, -1, WIDTH)


@pytest.mark.parametrize("planted", ["", "order", "weight"])
def test_experts_over_ep_with_a_capacity(planted):
    def program(rank, ranks):
        def step(given):
            tokens = given["x"].split(TOKENS)  # Each rank's tokens have a capacity of their own.
            return {"y": torch.cat([experts(given | {"x": x}, planted, ranks) for x in tokens])}

        return step

    def arguments(ranks):
        share = EXPERTS // ranks
        return {
            "x": drawn(2 * TOKENS // ranks, WIDTH), "router": drawn(WIDTH, EXPERTS),
            "up": drawn(share, WIDTH, 6), "down": drawn(share, 6, WIDTH),
        }  # fmt: skip

    found = outcome(program, arguments(1), arguments(2), {
        "mesh": {"ep": 2},
        "inputs": {"x": "concat 0", "router": "replica", "up, down": "concat 0"},
    })  # fmt: skip
    assert isinstance(found, Refutation if planted else Proof)


@pytest.mark.parametrize("planted", [False, True])
def test_a_block_of_dtensors(planted):
    """Column and row parallel; the planted bug takes the local term of the sum."""

    def program(rank, ranks):
        def step(given):
            x, up, down = given["x"], given["up"], given["down"]
            if ranks > 1:
                with untraced():
                    mesh = DeviceMesh("cpu", torch.arange(ranks))
                x = DTensor.from_local(x, mesh, [Replicate()], run_check=False)
                up = DTensor.from_local(up, mesh, [Shard(0)], run_check=False)
                down = DTensor.from_local(down, mesh, [Shard(1)], run_check=False)
            y = functional.gelu(x @ up.t()) @ down.t()
            if isinstance(y, DTensor):
                y = y.to_local() if planted else y.full_tensor()
            return {"y": y, "grad": torch.autograd.grad(y.square().sum(), given["up"])[0]}

        return step

    def arguments(ranks):
        share = 8 // ranks
        return {"x": drawn(3, 4), "up": drawn(share, 4, grad=True), "down": drawn(4, share)}

    found = outcome(program, arguments(1), arguments(2), {
        "mesh": {"tp": 2},
        "inputs": {"x": "replica", "up": "concat 0", "down": "concat 1"},
    })  # fmt: skip
    assert isinstance(found, Refutation if planted else Proof)
    if isinstance(found, Proof):
        assert {name: str(each) for name, each in found.outputs.items()} == {
            "y": "replica of y",
            "grad": "concat 0 over tp of grad",
        }
