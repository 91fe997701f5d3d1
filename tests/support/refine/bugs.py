"""The six bugs of GraphGuard's section 6.2, each in a small model, with its correct twin.

A model is a function of a rank, of the number of ranks and of whether the bug is there; it returns
a step, which is captured.  With one rank it is the sequential program.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.nn import functional

from pytest_trainsafe.judges.refine.graphs.modules import capture
from pytest_trainsafe.judges.refine.problem.declared import stated_problem

# Newer torch has the same collectives under new names, and warns of the old ones.
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor

RANKS = 2
TOKENS, WIDTH, WIDE, WORDS = 6, 4, 10, 3


def rows(count, rank, ranks):
    """The first and last of a rank's rows."""
    share = count // ranks
    return slice(rank * share, (rank + 1) * share)


class Gather(torch.autograd.Function):
    """All ranks' rows; backward, each rank gets its rows of the sum of the gradients."""

    @staticmethod
    def forward(ctx, x):
        whole = x.new_empty((RANKS * x.shape[0], *x.shape[1:]))
        _all_gather(whole, x.contiguous())
        return whole

    @staticmethod
    def backward(ctx, gradient):
        own = gradient.new_empty((gradient.shape[0] // RANKS, *gradient.shape[1:]))
        _reduce_scatter(own, gradient.contiguous())
        return own


def turned(x):
    """Pairs of a head, turned by 90 degrees."""
    return torch.cat((-x[..., WIDTH // 2 :], x[..., : WIDTH // 2]), -1)


class Rotary(torch.autograd.Function):
    """Rotary embeddings of a part of the sequence, whose place in the tables is `part`."""

    @staticmethod
    def forward(ctx, x, cos, sin, part, back):
        ctx.save_for_backward(cos, sin)
        ctx.part = back
        return x * cos[part] + turned(x) * sin[part]

    @staticmethod
    def backward(ctx, gradient):
        cos, sin = ctx.saved_tensors
        rotated = gradient * cos[ctx.part] - turned(gradient * sin[ctx.part])
        return rotated, None, None, None, None


def rotary(rank, ranks, bug):
    def step(given):
        x = given["x"].detach().requires_grad_()
        part = rows(TOKENS, rank, ranks)
        back = rows(TOKENS, 0, ranks) if bug else part
        y = Rotary.apply(x, given["cos"], given["sin"], part, back)
        (gradient,) = torch.autograd.grad((y * y * y).sum(), x)
        return {"rotated": y, "gradient": gradient}

    return step


def auxiliary_loss(rank, ranks, bug):
    """Every rank computes the loss of all tokens, whose gradient a reduce-scatter sums."""

    def step(given):
        first, router = (given[name].detach().requires_grad_() for name in ("first", "router"))
        x = given["x"] @ first
        whole = Gather.apply(x) if ranks > 1 else x
        shares = functional.softmax(whole @ router, -1).mean(0)
        loss = shares.square().sum()
        scaled = loss / ranks if not bug else loss
        gradient, of_router = torch.autograd.grad(scaled, (first, router))
        if ranks > 1:
            dist.all_reduce(gradient)
            dist.all_reduce(of_router)
        return {"loss": loss, "first_gradient": gradient}

    return step


def padding(rank, ranks, bug):
    """Keys are padded, gathered, and freed of the padding again."""

    def step(given):
        queries, keys = given["queries"], given["keys"]
        if ranks > 1:
            share = keys.shape[1]
            padded = functional.pad(keys, (0, 0, 0, 1)).transpose(0, 1)
            whole = Gather.apply(padded).transpose(0, 1)
            stride = share if bug else share + 1
            parts = [whole[:, start : start + share] for start in (0, stride)]
            keys = torch.cat(parts, 1)
        scores = torch.baddbmm(
            given["mask"], queries, keys.transpose(1, 2), alpha=1 / math.sqrt(WIDTH)
        )
        return {"attention": functional.softmax(scores, -1)}

    return step


def experts(rank, ranks, bug):
    """An expert's MLP on a part of the tokens; the bug is in its weights, which are cut."""

    def step(given):
        hidden = functional.gelu(given["x"] @ given["up"])
        return {"y": hidden @ given["down"]}

    return step


def layer_norm(rank, ranks, bug):
    """Each rank has a part of the sequence, and so a term of the gradient of the norm's weight."""

    def step(given):
        weight = given["norm"].detach().requires_grad_()
        key = given["key"].detach().requires_grad_()
        y = functional.layer_norm(given["x"], [WIDTH], weight) @ key
        gradient, of_key = torch.autograd.grad((y * y).sum(), (weight, key))
        if ranks > 1:
            dist.all_reduce(of_key)
            if not bug:
                dist.all_reduce(gradient)
        return {"norm_gradient": gradient, "key_gradient": of_key}

    return step


def accumulation(rank, ranks, bug):
    """A regression whose batch is one, or two micro-batches one after the other."""

    def step(given):
        weight = given["weight"].detach().requires_grad_()
        batches = [("x", "y")] if "x" in given else [("x_0", "y_0"), ("x_1", "y_1")]
        scale = 1 if bug else 1 / len(batches)
        losses = [(given[x] @ weight - given[y]).square().mean() for x, y in batches]
        total = losses[0] if len(batches) == 1 else sum(each * scale for each in losses)
        (gradient,) = torch.autograd.grad(total, weight)
        return {"loss": total, "weight_gradient": gradient}

    return step


@dataclass(frozen=True)
class Bug:
    """A model, the shapes of its inputs with their relations, and those of its results.

    `part` changes the shapes and `inputs` the relations where the bug is there.  `operator` is
    where the bug is refuted.
    """

    model: Callable[[int, int, bool], Callable[[dict], dict]]
    shapes: dict
    inputs: dict
    outputs: dict
    operator: str
    bug_inputs: dict | None = None
    ranks: int = RANKS


CUT = "concat 0 over tp"
BUGS = {
    "rope offset": Bug(
        rotary,
        {"x": (TOKENS, WIDTH), "cos": (TOKENS, WIDTH), "sin": (TOKENS, WIDTH)},
        {"x": CUT, "cos, sin": "replica"},
        {"rotated, gradient": CUT},
        "aten.mul",
    ),
    "auxiliary loss": Bug(
        auxiliary_loss,
        {"x": (TOKENS, WIDTH), "first": (WIDTH, WIDE), "router": (WIDE, WORDS)},
        {"x": CUT, "first, router": "replica"},
        {"loss, first_gradient": "replica"},
        "aten.mm",
    ),
    "padding": Bug(
        padding,
        {"queries": (2, TOKENS, WIDTH), "keys": (2, TOKENS, WIDTH), "mask": (TOKENS,)},
        {"queries, mask": "replica", "keys": "concat 1 over tp"},
        {"attention": "replica"},
        "aten.baddbmm",
    ),
    "experts": Bug(
        experts,
        {"x": (TOKENS, WIDTH), "up": (WIDTH, WIDE), "down": (WIDE, WIDTH)},
        {"x": CUT, "up, down": "replica"},
        {"y": CUT},
        "aten.mm",
        {"up": "concat 1 over tp", "down": "concat 0 over tp"},
    ),
    "layer norm": Bug(
        layer_norm,
        {"x": (TOKENS, WIDTH), "norm": (WIDTH,), "key": (WIDTH, WIDE)},
        {"x": CUT, "norm, key": "replica"},
        {"norm_gradient, key_gradient": "replica"},
        "aten.native_layer_norm_backward",
    ),
    "accumulation": Bug(
        accumulation,
        {"x": (TOKENS, WIDTH), "y": (TOKENS, WORDS), "weight": (WIDTH, WORDS)},
        {"x": "concat 0 of x_0, x_1", "y": "concat 0 of y_0, y_1", "weight": "replica"},
        {"loss, weight_gradient": "replica"},
        "aten.mean",
        ranks=1,
    ),
}


def problem(name, planted):
    """The problem of a model with the bug, or of its correct twin."""
    bug = BUGS[name]
    relations: dict[str, str] = {}
    for names, text in bug.inputs.items():
        relations |= dict.fromkeys((each.strip() for each in names.split(",")), text)
    if planted and bug.bug_inputs:
        relations |= bug.bug_inputs
    whole = {each: torch.zeros(shape) for each, shape in bug.shapes.items()}
    sequential = capture(bug.model(0, 1, False), whole, name="sequential")
    ranks = [
        capture(
            bug.model(rank, bug.ranks, planted), part(whole, relations, bug.ranks), rank=rank,
            ranks=bug.ranks,
        )
        for rank in range(bug.ranks)
    ]  # fmt: skip
    declared = {"mesh": {"tp": bug.ranks}, "inputs": relations, "outputs": bug.outputs}
    return stated_problem(sequential, ranks, declared)


def part(whole, relations, ranks):
    """The inputs of a rank, by their relations."""
    found = {}
    for name, tensor in whole.items():
        text, _, names = relations[name].partition(" of ")
        if text == "replica":
            found[name] = tensor
            continue
        names = names.split(", ") if names else [name]
        count = len(names) if len(names) > 1 else ranks
        found |= dict.fromkeys(names, tensor.chunk(count, int(text.split()[1]))[0].clone())
    return found
