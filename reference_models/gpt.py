"""The reference program: train a small GPT, on one device or in parallel, as the Point says.

A test names it, `@pytest.mark.trainsafe(gpt.train, tp=[1, 2])`, and it runs inside the ranks.
Importing this module imports no torch, for pytest imports it to collect that test.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pytest_trainsafe.reference_models.config import VOCABULARY
from pytest_trainsafe.sweep.point import Point
from pytest_trainsafe.sweep.validity import divides, requires

if TYPE_CHECKING:
    from pytest_trainsafe.record.context import Context


def _vocabulary_over_tp(point: Point, _arguments: Mapping[str, object]) -> str | None:
    if VOCABULARY % point.size("tp"):
        return f"the vocabulary of {VOCABULARY} is not divisible by tp={point.size('tp')}"
    return None


def _sequence_in_chunks(point: Point, arguments: Mapping[str, object]) -> str | None:
    """Zig-zag cuts the sequence in 2 * cp chunks; sp cuts what a cp rank holds over tp."""
    length, cp, tp = int(str(arguments["seq_len"])), point.size("cp"), point.size("tp")
    if cp > 1 and length % (2 * cp):
        return f"seq_len={length} is not divisible by 2*cp={2 * cp}"
    if point.get("sp", False) and length // cp % tp:
        return f"seq_len/cp={length // cp} is not divisible by tp={tp}, as sp needs"
    return None


@requires(
    divides("heads", "tp"),
    divides("microbatches", "dp"),
    _vocabulary_over_tp,
    _sequence_in_chunks,
)
def train(
    ctx: Context,
    layers: int = 2,
    hidden: int = 64,
    heads: int = 4,
    seq_len: int = 32,
    batch_size: int = 2,
    microbatches: int = 2,
    steps: int = 2,
    learning_rate: float = 1e-3,
    clip: float = 0.0,
    bug: str = "",
) -> None:
    """Train a GPT for `steps` optimizer steps of `microbatches` micro-batches each.

    On one rank it is the single-device model, unchanged.  Axes: dp, tp, sp, cp, microbatches and
    dtype.  `clip` is the largest gradient norm let through (0 lets all through).  `bug` plants
    one of `bugs.NAMES`.
    """
    import torch

    from pytest_trainsafe.reference_models import main_gradients, text
    from pytest_trainsafe.reference_models.annotations import activation_annotations
    from pytest_trainsafe.reference_models.config import GPTConfig
    from pytest_trainsafe.reference_models.optimizer import adamw
    from pytest_trainsafe.reference_models.parallel.apply import parallel_gpt
    from pytest_trainsafe.reference_models.parallel.axes import Axes
    from pytest_trainsafe.reference_models.parallel.gradients import (
        clip_gradients,
        gradient_norm,
        reduce_gradients,
    )
    from pytest_trainsafe.reference_models.parallel.loss import loss_to_differentiate
    from pytest_trainsafe.reference_models.parallel.zigzag import take_part

    total = int(ctx.point.get("microbatches", microbatches))
    tokens_in_step = total * batch_size * seq_len
    config = GPTConfig(layers, hidden, heads, seq_len)
    axes = Axes.of(ctx, bug)

    model = parallel_gpt(config, axes).to(device=ctx.device, dtype=ctx.dtype)
    ctx.initialize(model)
    parameters = list(model.parameters())
    optimizer = adamw(parameters, learning_rate)
    ctx.watch(model, optimizer, annotations=activation_annotations(config))

    for step in range(steps):
        with ctx.step():
            for index in ctx.microbatches(total):
                tokens, targets = text.batch(step * total + index, batch_size, seq_len, ctx.seed)
                positions = torch.arange(seq_len)[None]
                # Under cp, every input is cut the same way before the model sees it.
                inputs = (
                    take_part(whole, axes.cp).to(ctx.device)
                    for whole in (tokens, positions, targets)
                )
                with ctx.microbatch(index):
                    losses = model(*inputs)
                    ctx.loss(losses.detach().sum() / targets.numel())
                    loss_to_differentiate(losses, tokens_in_step, axes).backward()  # type: ignore[no-untyped-call]
                    main_gradients.accumulate(parameters)
            reduce_gradients(parameters, axes)
            norm = gradient_norm(parameters, axes.tp)
            ctx.grad_norm(norm)
            if clip:
                clip_gradients(parameters, norm, clip)
            optimizer.step()
            main_gradients.clear(parameters)
