"""Trainings that a bug of DeepSpeed makes hang or crash, each as a user would write it.

`stuck.train` runs them in the ranks.  With `sound`, each function runs the most similar training
that does not trigger the bug.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from deepspeed.moe.layer import MoE
from deepspeed.moe.utils import split_params_into_different_moe_groups_for_optimizer
from torch import Tensor, nn

if TYPE_CHECKING:
    from pytest_trainsafe.record.context import Context

WIDTH = 16


class Mixture(nn.Module):
    """Residual layers with two experts each, which are distributed over `ranks` ranks.

    The output has the input's shape.
    """

    def __init__(self, layers: int, ranks: int, drop_tokens: bool) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            MoE(
                WIDTH,
                nn.Linear(WIDTH, WIDTH),
                num_experts=2,
                ep_size=ranks,
                min_capacity=0,
                drop_tokens=drop_tokens,
                use_rts=False,
            )
            for _ in range(layers)
        )

    def forward(self, hidden: Tensor) -> Tensor:
        for layer in self.layers:
            hidden = hidden + layer(hidden)[0]
        return hidden


def of_own_length(ctx: Context, deepspeed: Any, sound: bool) -> None:
    """Trains experts over two ranks; the sequences of rank 1 are longer than those of rank 0."""
    engine = _engine(ctx, deepspeed, Mixture(2, 2, drop_tokens=True))
    _step(ctx, engine, tokens=8 if sound else 8 + 4 * ctx.rank)


def of_own_capacity(ctx: Context, deepspeed: Any, sound: bool) -> None:
    """Evaluates a mixture of experts that drops no token, without an engine around it."""
    model = Mixture(2, 2, drop_tokens=False)
    if sound:  # what an engine does with each layer
        for layer in model.layers:
            layer.set_deepspeed_parallelism()  # type: ignore[operator]  # a method of MoE
    ctx.watch(model)
    with torch.no_grad(), ctx.step():
        model(_tokens(9, ctx.rank))


def of_own_limit(ctx: Context, deepspeed: Any, sound: bool) -> None:
    """Trains a mixture of experts that drops no token, on two ranks with 2 and 16 tokens.

    The ranks agree on the capacity of an expert: the largest number of tokens that any expert gets,
    which is more than 2.  But rank 0 limits the capacity to the number of its own tokens, 2.  So
    the tensors that the ranks exchange differ in size.
    """
    engine = _engine(ctx, deepspeed, Mixture(2, 2, drop_tokens=False))
    _step(ctx, engine, tokens=8 if sound else 2 + 14 * ctx.rank)


def in_one_stage(ctx: Context, deepspeed: Any, sound: bool) -> None:
    """Trains a pipeline in bfloat16 whose experts are all in its first stage."""
    from deepspeed.pipe import PipelineModule

    last = Mixture(1, 1, drop_tokens=True) if sound else nn.Linear(WIDTH, WIDTH)
    model = PipelineModule(
        layers=[Mixture(1, 1, drop_tokens=True), last],
        num_stages=2,
        loss_fn=nn.functional.mse_loss,
        partition_method="uniform",
    )
    engine = _engine(ctx, deepspeed, model, bf16={"enabled": True})
    with ctx.step():
        engine.train_batch(_pairs())


def of_another_model(ctx: Context, deepspeed: Any, sound: bool) -> None:
    """Trains with an optimizer that holds the parameters of two models, one of which is trained."""
    model, other = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 4)
    held = [*model.parameters(), *(() if sound else other.parameters())]
    optimizer = torch.optim.AdamW(held)
    config = _config(int(ctx.point.get("zero", 0)))
    engine, *_ = deepspeed.initialize(
        model=model, optimizer=optimizer, config=config, dist_init_required=False
    )
    ctx.watch(engine)
    _step(ctx, engine, tokens=4)


TRAININGS: dict[str, Callable[[Context, Any, bool], None]] = {
    made.__name__: made
    for made in (of_own_length, of_own_capacity, of_own_limit, in_one_stage, of_another_model)
}


def _config(stage: int, **more: Any) -> dict[str, Any]:
    return {
        "train_micro_batch_size_per_gpu": 1,
        "zero_optimization": {"stage": stage},
        "zero_allow_untested_optimizer": True,
        "steps_per_print": 2**31,
        **more,
    }


def _engine(ctx: Context, deepspeed: Any, model: nn.Module, **more: Any) -> Any:
    """Returns an engine around a model; its optimizer has separate groups for experts."""
    named = {"params": list(model.parameters()), "name": "all"}
    groups = split_params_into_different_moe_groups_for_optimizer(named)
    engine, *_ = deepspeed.initialize(
        model=model,
        optimizer=torch.optim.AdamW(groups),
        config=_config(int(ctx.point.get("zero", 0)), **more),
        dist_init_required=False,
    )
    ctx.watch(engine)
    return engine


def _step(ctx: Context, engine: Any, tokens: int) -> None:
    with ctx.step():
        engine.backward(engine(_tokens(tokens, ctx.rank)).pow(2).mean())
        engine.step()


def _tokens(count: int, rank: int) -> Tensor:
    """Random hidden states of shape [1, count, WIDTH], different on each rank."""
    return torch.randn(1, count, WIDTH, generator=torch.Generator().manual_seed(rank))


def _pairs() -> Iterator[tuple[Tensor, Tensor]]:
    while True:
        inputs, labels = torch.ones(2, 1, 8, WIDTH, dtype=torch.bfloat16).unbind()
        yield inputs, labels
