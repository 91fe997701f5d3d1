"""A module of Lightning, trained by its Trainer with DDP, accumulation and clipping."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tests.support.third_party.tokens import tokens
from tests.support.third_party.transformers_ddp import build

MICROBATCHES = 4


def train(ctx: Any, steps: int = 2, fault: str = "") -> None:
    import lightning
    from torch.utils.data import DataLoader

    ranks, rank = ctx.point.size("dp"), ctx.coordinates["dp"]
    share = MICROBATCHES // ranks

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.network = build("gpt2").to(ctx.dtype)

        def training_step(self, ids: Tensor, number: int) -> Tensor:
            with ctx.microbatch(number % share * ranks + rank):
                loss: Tensor = self.network(input_ids=ids, labels=ids).loss
                ctx.loss(loss)
                return loss / share if fault == "divided twice" else loss

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters(), lr=1e-3)

    class Marks(lightning.Callback):
        def on_train_start(self, trainer: Any, module: Any) -> None:
            ctx.watch(module, trainer.optimizers)

        def on_train_batch_start(self, trainer: Any, module: Any, *batch: Any) -> None:
            if batch[-1] % share == 0:
                self.step = ctx.step()
                self.step.__enter__()

        def on_train_batch_end(self, trainer: Any, module: Any, *batch: Any) -> None:
            if batch[-1] % share == share - 1:
                self.step.__exit__(None, None, None)

    module = Module()
    ctx.initialize(module)
    trainer = lightning.Trainer(
        accelerator="cpu", devices=ranks, strategy="ddp" if ranks > 1 else "auto", max_epochs=1,
        accumulate_grad_batches=share, gradient_clip_val=0.5, callbacks=[Marks()], logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        use_distributed_sampler=False,
    )  # fmt: skip
    dealt = [
        tokens(step, index)
        for step in range(steps)
        for index in range(MICROBATCHES)
        if index % ranks == (0 if fault == "same data" else rank)
    ]
    trainer.fit(module, DataLoader(dealt, batch_size=None))  # type: ignore[arg-type]  # a list will do
