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
    from pytest_trainsafe.reference_models.annotations import activation_annotations
    from pytest_trainsafe.reference_models.config import GPTConfig
    from pytest_trainsafe.reference_models.parallel.apply import parallel_gpt
    from pytest_trainsafe.reference_models.parallel.axes import Axes
    from pytest_trainsafe.reference_models.training import Recipe, train_language_model

    config = GPTConfig(layers, hidden, heads, seq_len)
    axes = Axes.of(ctx, bug)
    total = int(ctx.point.get("microbatches", microbatches))
    recipe = Recipe(batch_size, seq_len, total, steps, learning_rate, clip)
    model = parallel_gpt(config, axes)
    train_language_model(ctx, model, axes, recipe, activation_annotations(config))
