"""The reference program of an LSTM: train a small one on text, with one token per byte.

Importing this module does not import torch, because pytest imports it to collect the tests that
name it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_trainsafe.judges.metamorphic import relations
from pytest_trainsafe.reference_models.config import VOCABULARY
from pytest_trainsafe.reference_models.rules import known_vocabulary, only_data_parallel
from pytest_trainsafe.sweep.validity import divides, requires

if TYPE_CHECKING:
    from torch import Tensor

    from pytest_trainsafe.record.context import Context


@relations.hold(relations.Split(), relations.Order())
@requires(divides("microbatches", "dp"), only_data_parallel(), known_vocabulary)
def train(
    ctx: Context,
    layers: int = 2,
    hidden: int = 32,
    seq_len: int = 16,
    batch_size: int = 4,
    microbatches: int = 4,
    steps: int = 2,
    learning_rate: float = 1e-3,
    clip: float = 0.0,
    vocabulary: int = VOCABULARY,
    bucket: int = 0,
    overlap_grad_reduce: bool = False,
    overlap_param_gather: bool = False,
    bug: str = "",
) -> None:
    """Train an LSTM for `steps` optimizer steps of `microbatches` micro-batches each.

    On one rank it trains the plain single-device model.  Axes: dp, zero, microbatches and
    dtype.  `clip` is the maximum gradient norm; 0 turns clipping off.  `vocabulary` is the number
    of tokens, at most 256.  `bucket`, `overlap_grad_reduce` and `overlap_param_gather` are
    explained in `parallel/techniques.py`.  `bug` plants one of `bugs.NAMES` that concerns dp or
    zero.
    """
    from pytest_trainsafe.reference_models.datasets import text
    from pytest_trainsafe.reference_models.networks.lstm import LSTM
    from pytest_trainsafe.reference_models.parallel.axes import Axes
    from pytest_trainsafe.reference_models.parallel.techniques import (
        Techniques,
        microbatches_of,
    )
    from pytest_trainsafe.reference_models.training.supervised import Plan, train_supervised

    techniques = Techniques(
        bucket=bucket,
        overlap_grad_reduce=overlap_grad_reduce,
        overlap_param_gather=overlap_param_gather,
    )
    total = microbatches_of(ctx, microbatches)
    plan = Plan(batch_size * seq_len, total, steps, learning_rate, clip)

    def batch(number: int) -> tuple[Tensor, Tensor]:
        return text.batch(number, batch_size, seq_len, ctx.seed, vocabulary)

    model = LSTM(layers, hidden, vocabulary)
    train_supervised(ctx, model, Axes.of(ctx, bug, techniques), plan, batch)
