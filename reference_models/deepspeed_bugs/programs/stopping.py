"""The trainings that stop, each as a user would write it.  Run in ranks, by `stuck.train`."""

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
    """Layers of two experts, shared out over `ranks`; the output has the input's shape."""

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
    """Ranks share the experts, and the sequences of rank 1 are longer than those of rank 0."""
    engine = _engine(ctx, deepspeed, Mixture(2, 2, drop_tokens=True))
    _step(ctx, engine, tokens=8 if sound else 8 + 4 * ctx.rank)


def of_own_capacity(ctx: Context, deepspeed: Any, sound: bool) -> None:
    """A mixture that drops no token is evaluated by itself, with no engine around it."""
    model = Mixture(2, 2, drop_tokens=False)
    if sound:  # what an engine does with each layer
        for layer in model.layers:
            layer.set_deepspeed_parallelism()  # type: ignore[operator]  # a method of MoE
    ctx.watch(model)
    with torch.no_grad(), ctx.step():
        model(_tokens(9, ctx.rank))


def of_own_limit(ctx: Context, deepspeed: Any, sound: bool) -> None:
    """A mixture that drops no token; most tokens of rank 1 choose one expert: more than rank 0 has.

    Ranks agree on the largest number that any expert gets, and rank 0 takes its own 2 instead.
    """
    engine = _engine(ctx, deepspeed, Mixture(2, 2, drop_tokens=False))
    _step(ctx, engine, tokens=8 if sound else 2 + 14 * ctx.rank)


def in_one_stage(ctx: Context, deepspeed: Any, sound: bool) -> None:
    """A pipeline whose experts are all in its first stage, in bfloat16."""
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
    """The optimizer is of two models, and DeepSpeed is given one of them."""
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
    """An engine around a model with experts, which want groups of their own in the optimizer."""
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
    """[1, count, WIDTH], another draw on each rank."""
    return torch.randn(1, count, WIDTH, generator=torch.Generator().manual_seed(rank))


def _pairs() -> Iterator[tuple[Tensor, Tensor]]:
    while True:
        inputs, labels = torch.ones(2, 1, 8, WIDTH, dtype=torch.bfloat16).unbind()
        yield inputs, labels
