"""Experts over ep without a capacity: each rank sends as many rows as its router decides."""

import pytest
import torch
import torch.distributed as dist

from pytest_trainsafe import TrainsafeFailure, assert_refines
from pytest_trainsafe.judges.refine.certificate.checker import check
from pytest_trainsafe.judges.refine.graphs.modules import capture

EXPERTS, WIDTH, TOKENS = 4, 3, 12


class Exchange(torch.autograd.Function):
    """Rows for all ranks; the backward sends the gradients of the rows back."""

    @staticmethod
    def forward(ctx, rows, sent, received):
        ctx.sizes = sent, received
        return exchanged(rows, sent, received)

    @staticmethod
    def backward(ctx, gradient):
        sent, received = ctx.sizes
        return exchanged(gradient, received, sent), None, None


def exchanged(rows, sent, received):
    came = rows.new_empty((sum(received), *rows.shape[1:]))
    dist.all_to_all_single(came, rows.contiguous(), received, sent)
    return came


def answers(rows, numbers, weights):
    """What the experts say of rows, of which `numbers` are those of the experts."""
    said = torch.zeros_like(rows)
    for number, weight in weights.items():
        mine = (numbers == number).nonzero().squeeze(1)
        said = said.index_copy(0, mine, torch.tanh(rows[mine] @ weight))
    return said


def layer(rank, ranks, planted):
    own = range(rank * EXPERTS // ranks, (rank + 1) * EXPERTS // ranks)

    def step(given):
        x, weights = given["x"], {number: given[f"expert{number}"] for number in own}
        chosen = (x @ given["router"]).topk(1).indices.squeeze(1)
        order = chosen.argsort(stable=True)
        rows, numbers = x[order], chosen[order]
        if ranks == 1:
            said = answers(rows, numbers, weights)
        else:
            counts = torch.bincount(numbers, minlength=EXPERTS).view(ranks, len(own))
            come = torch.empty_like(counts)
            dist.all_to_all_single(come, counts)
            sent, received = counts.sum(1).tolist(), come.sum(1).tolist()
            first = 0 if planted else rank * len(own)
            whose = torch.arange(first, first + len(own)).repeat(ranks)
            whose = whose.repeat_interleave(come.flatten())
            came = Exchange.apply(rows, sent, received)
            said = Exchange.apply(answers(came, whose, weights), received, sent)
        y = torch.zeros_like(x).index_copy(0, order, said)
        gradients = torch.autograd.grad(y.square().sum(), list(weights.values()))
        return {"y": y, **{f"gradient{n}": g for n, g in zip(own, gradients, strict=True)}}

    return step


def graphs(planted):
    def tensors(tokens, own):
        drawn = {"x": (tokens, WIDTH), "router": (WIDTH, EXPERTS)}
        drawn |= {f"expert{number}": (WIDTH, WIDTH) for number in own}
        made = {name: torch.zeros(shape, dtype=torch.float64) for name, shape in drawn.items()}
        return {name: each.requires_grad_(name[:6] == "expert") for name, each in made.items()}

    sequential = capture(layer(0, 1, False), tensors(TOKENS, range(EXPERTS)), name="sequential")
    ranks = [
        capture(layer(rank, 2, planted), tensors(TOKENS // 2, range(2 * rank, 2 * rank + 2)),
                rank=rank, ranks=2)
        for rank in (0, 1)
    ]  # fmt: skip
    owners = {number: f"at ep={number // 2}" for number in range(EXPERTS)}
    inputs = {"x": "concat 0", "router": "replica"}
    outputs = {"y": "concat 0"}
    for number, owner in owners.items():
        inputs[f"expert{number}"] = outputs[f"gradient{number}"] = owner
    return sequential, ranks, {"mesh": {"ep": 2}, "inputs": inputs, "outputs": outputs}


def test_rows_that_are_sent_as_the_router_decides_are_proved_and_checked_for_other_decisions():
    sequential, ranks, relation = graphs(planted=False)
    certificate = assert_refines(sequential, ranks, relation)
    for seed in (5, 6):
        assert check(certificate, sequential, ranks, seed=seed) > len(relation["outputs"])


def test_experts_that_are_asked_by_the_numbers_of_another_rank_are_refuted():
    with pytest.raises(TrainsafeFailure) as raised:
        assert_refines(*graphs(planted=True))
    assert "do not refine" in str(raised.value)
