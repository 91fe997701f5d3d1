"""Trains a GPT with plain PyTorch on one device, or with DeepSpeed's engine over tp.

Runs in the ranks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from pytest_trainsafe.fixtures.deepspeed.engine import start
from pytest_trainsafe.fixtures.deepspeed.reference import Recipe
from pytest_trainsafe.reference_models.config import GPTConfig
from pytest_trainsafe.reference_models.datasets import text
from pytest_trainsafe.reference_models.deepspeed_bugs.plants import plant
from pytest_trainsafe.reference_models.networks.gpt import GPT
from pytest_trainsafe.reference_models.parallel.apply import parallel_gpt
from pytest_trainsafe.reference_models.parallel.axes import Axes
from pytest_trainsafe.reference_models.training.annotations import activation_annotations

if TYPE_CHECKING:
    from pytest_trainsafe.record.context import Context

#: Learning rates.  With SGD's, a clipped step is as long as one of AdamW.
RATES = {"AdamW": 1e-3, "SGD": 0.1}

BATCH_SIZE = 2


def train_plainly(
    ctx: Context, config: GPTConfig, optimizer: str, microbatches: int, steps: int, clip: float
) -> None:
    """Trains with plain PyTorch on one device; `clip` is the maximum gradient norm, 0 for none."""
    model = _model(ctx, GPT(config))
    plain = Recipe(list(model.parameters()), _optimizer(optimizer, model), clip, in_float32=True)
    ctx.watch(model, plain, annotations=activation_annotations("gpt", config))
    for step in range(steps):
        with ctx.step():
            for index in ctx.microbatches(microbatches):
                with ctx.microbatch(index):
                    loss = model(*_batch(ctx, config, step * microbatches + index)).mean()
                    ctx.loss(loss)
                    (loss / microbatches).backward()
                plain.accumulate()
            plain.step()
            ctx.grad_norm(plain.norm)
        plain.zero_grad()


def train_by_deepspeed(
    ctx: Context,
    config: GPTConfig,
    optimizer: str,
    microbatches: int,
    steps: int,
    clip: float,
    bug: str,
) -> None:
    """Trains with DeepSpeed's engine, which in bfloat16 uses BF16_Optimizer.

    Plants the bug named `bug`, if it is not "".
    """
    deepspeed = start(ctx)
    if bug:
        plant(bug)
    model = _model(ctx, parallel_gpt(config, Axes.of(ctx)))
    engine, *_ = deepspeed.initialize(
        model=model,
        optimizer=_optimizer(optimizer, model),
        mpu=ModelParallelUnit(ctx),
        config={
            "train_micro_batch_size_per_gpu": BATCH_SIZE,
            "gradient_accumulation_steps": microbatches // ctx.point.size("dp"),
            "gradient_clipping": clip,
            "zero_optimization": {"stage": 1},
            "zero_allow_untested_optimizer": True,
            "bf16": {"enabled": ctx.dtype == torch.bfloat16},
            "data_types": {"grad_accum_dtype": "fp32"},
            "steps_per_print": 2**31,
        },
    )
    annotations = activation_annotations("gpt", config)
    ctx.watch(engine, annotations={**annotations, "gradients": {"mean": ["dp"]}})
    for step in range(steps):
        with ctx.step():
            for index in ctx.microbatches(microbatches):
                with ctx.microbatch(index):
                    loss = engine(*_batch(ctx, config, step * microbatches + index)).mean()
                    ctx.loss(loss)
                    engine.backward(loss)
                engine.step()
            ctx.grad_norm(engine.get_global_grad_norm())


class ModelParallelUnit:
    """The part of Megatron's `mpu` that DeepSpeed uses: this rank's position on tp and dp."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx

    def get_model_parallel_rank(self) -> int:
        return self._ctx.coordinates["tp"]

    def get_model_parallel_world_size(self) -> int:
        return self._ctx.point.size("tp")

    def get_model_parallel_group(self) -> Any:
        return self._ctx.group("tp")

    def get_data_parallel_rank(self) -> int:
        return self._ctx.coordinates["dp"]

    def get_data_parallel_world_size(self) -> int:
        return self._ctx.point.size("dp")

    def get_data_parallel_group(self) -> Any:
        return self._ctx.group("dp")


def _model(ctx: Context, model: nn.Module) -> nn.Module:
    model.to(ctx.device, ctx.dtype)
    ctx.initialize(model)
    return model


def _optimizer(name: str, model: nn.Module) -> torch.optim.Optimizer:
    kind: Any = getattr(torch.optim, name)
    found: torch.optim.Optimizer = kind(model.parameters(), lr=RATES[name])
    return found


def _batch(ctx: Context, config: GPTConfig, number: int) -> list[Tensor]:
    tokens, targets = text.batch(number, BATCH_SIZE, config.seq_len, ctx.seed)
    return [each.to(ctx.device) for each in (tokens, torch.arange(config.seq_len)[None], targets)]
