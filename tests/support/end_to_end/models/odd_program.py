"""A model with many parts that are unusual to record, each of which can be made wrong."""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

WORDS, HIDDEN, BATCH, LENGTH = 12, 8, 2, 6

#: The first wrong tensor of each fault.
STARTS = {
    "boolean": "flags.output · activation",
    "integer": "numbers.output · activation",
    "second call": "shared.output · activation · step 0 · micro-batch 1 · call 1",
    "complex": "spectrum.output · activation",
    "zero-size": "nothing.output · activation",
    "non-contiguous": "turned.output · activation",
    "in-place": "inplace.output · activation",
    "alias": "same.output · activation",
    "structure": "many.output.0.b · activation",
    "skipped": "skipped.output · activation",
    "frozen": "frozen.weight · param",
    "unused": "unused.weight · param",
    "tied": "words.weight · param_grad",
}


class Own:
    """An object of a user's class."""

    def __init__(self, hidden: Tensor) -> None:
        self.hidden = hidden


class Made(nn.Module):
    """Applies the function `make` to its input, or `wrong` if `broken` is set."""

    def __init__(self, make: Any, wrong: Any) -> None:
        super().__init__()
        self.make, self.wrong, self.broken = make, wrong, False

    def forward(self, value: Tensor) -> Any:
        return (self.wrong if self.broken else self.make)(value)


class Odd(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, HIDDEN)
        self.frozen = nn.Linear(HIDDEN, HIDDEN)
        self.frozen.requires_grad_(False)
        self.unused = nn.Linear(HIDDEN, HIDDEN)
        self.shared = nn.Linear(HIDDEN, HIDDEN)
        self.skipped = nn.Linear(HIDDEN, HIDDEN)
        self.flags = Made(lambda ids: ids > 3, lambda ids: ids > 5)
        self.numbers = Made(lambda ids: ids.flip(-1), lambda ids: ids)
        self.inplace = Made(lambda h: h.relu_(), lambda h: h.abs_())
        self.same = Made(lambda h: h, lambda h: h.mul(1.5))
        self.turned = Made(lambda h: h.transpose(1, 2), lambda h: h.flip(1).transpose(1, 2))
        self.spectrum = Made(torch.fft.rfft, lambda h: torch.fft.rfft(h).conj())
        self.nothing = Made(lambda h: h[:, :0], lambda h: h[:0])
        self.many = Made(
            lambda h: ({"b": h + 1, "text": "none", "no": None}, [h]),
            lambda h: ({"b": h + 2, "text": "none", "no": None}, [h]),
        )
        self.own = Made(Own, Own)
        self.out = nn.Linear(HIDDEN, WORDS, bias=False)
        self.out.weight = self.words.weight
        self.skip = False

    def forward(self, ids: Tensor) -> Tensor:
        hidden = self.words(self.numbers(ids)) * self.flags(ids).unsqueeze(-1)
        hidden = self.frozen(self.shared(self.shared(hidden)))
        hidden = self.same(self.inplace(hidden))
        hidden = hidden if self.skip else hidden + self.skipped(hidden)
        hidden = self.turned(hidden).transpose(1, 2)
        structure, _ = self.many(hidden)
        hidden = self.own(structure["b"]).hidden
        hidden = hidden + self.nothing(hidden).sum()
        wide = hidden.to(torch.promote_types(hidden.dtype, torch.float32))
        weights = self.spectrum(wide).abs().to(hidden.dtype)
        return self.out(hidden * weights.mean())


def train(ctx: Any, fault: str = "") -> None:
    """Train over dp, two micro-batches; `fault` is one of STARTS.

    The fault `tied` acts on every rank, all others on rank 1 only.
    """
    model = Odd().to(ctx.device, ctx.dtype)
    ctx.initialize(model)
    if fault == "tied":
        model.out.weight = copy.deepcopy(model.out.weight)
    odd = fault if ctx.rank == 1 else ""
    names = {
        "boolean": "flags",
        "integer": "numbers",
        "complex": "spectrum",
        "zero-size": "nothing",
        "non-contiguous": "turned",
        "in-place": "inplace",
        "alias": "same",
        "structure": "many",
    }
    if odd in names:
        getattr(model, names[odd]).broken = True
    model.skip = odd == "skipped"
    if odd == "second call":
        calls = iter([1.0, 1.5])
        model.shared.register_forward_hook(lambda _module, _args, out: out * next(calls))
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    ctx.watch(model, optimizer)
    with ctx.step():
        for index in ctx.microbatches(2):
            draw = torch.Generator().manual_seed(index)
            ids = torch.randint(WORDS, (BATCH, LENGTH), generator=draw)
            with ctx.microbatch(index):
                loss = model(ids).square().mean() / 2
                ctx.loss(loss)
                loss.backward()
        if odd == "skipped":  # so that all ranks call the same all-reduces
            for parameter in model.skipped.parameters():
                parameter.grad = torch.zeros_like(parameter)
        for parameter in model.parameters():
            if parameter.grad is not None:
                dist.all_reduce(parameter.grad, group=ctx.group("dp"))
        optimizer.step()
        if odd in ("frozen", "unused"):
            getattr(model, odd).weight.data.mul_(1.5)
