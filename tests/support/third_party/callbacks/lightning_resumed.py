"""A network under Lightning's Trainer that resumes from Lightning's own checkpoint."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from pytest_trainsafe.fixtures.lightning import lightning_callback

BATCH, PER_EPOCH, STEPS = 2, 3, 5


class Loader:
    """A loader that shuffles by the epoch, and whose state is the epoch and the position in it."""

    def __init__(self, x: torch.Tensor, rank: int, ranks: int) -> None:
        self.x, self.rank, self.ranks = x, rank, ranks
        self.epoch, self.position, self.resumed = 0, 0, False

    def __len__(self) -> int:
        return PER_EPOCH

    def __iter__(self) -> Iterator[list[torch.Tensor]]:
        begin = self.position if self.resumed else 0
        self.resumed = False
        order = torch.randperm(len(self.x), generator=torch.Generator().manual_seed(self.epoch))
        for number in range(begin, PER_EPOCH):
            self.position = number + 1
            if self.position == PER_EPOCH:
                self.epoch, self.position = self.epoch + 1, 0
            batch = number * self.ranks + self.rank
            yield [self.x[order[batch * BATCH : (batch + 1) * BATCH]]]

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self.epoch, "position": self.position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.epoch, self.position, self.resumed = state["epoch"], state["position"], True


def train(ctx: Any, fault: str = "") -> None:
    """Train in two epochs; `fault` names what Lightning's checkpoint does not restore."""
    import lightning.pytorch as pl

    class Lit(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
            self.drop = nn.Dropout(0.5 if fault == "rng" else 0.0)
            self.register_buffer("scale", torch.ones(()), persistent=fault != "buffer")
            self.mean = copy.deepcopy(self.net).requires_grad_(False)

        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            self.scale *= 1.25
            return (self.net(self.drop(batch[0])) * self.scale).square().mean()

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2, foreach=False)
            schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2)
            if fault == "schedule":
                self.schedule = schedule
                return optimizer
            return [optimizer], [{"scheduler": schedule, "interval": "step"}]

        def on_train_batch_end(self, *_: Any) -> None:
            if fault == "schedule":
                self.schedule.step()

        def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
            if fault == "moments":
                checkpoint["optimizer_states"][0]["state"] = {}

    class Average(pl.Callback):
        """An average of the weights in a dict, which Lightning saves if `state_dict` has it."""

        def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
            self.means = {n: p.detach().clone() for n, p in pl_module.named_parameters()}

        def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:
            for name, parameter in pl_module.named_parameters():
                self.means[name].lerp_(parameter.detach(), 0.25)

        def state_dict(self) -> dict[str, Any]:
            return {} if fault == "average" else self.means

        def load_state_dict(self, state: dict[str, Any]) -> None:
            for name, value in state.items():
                self.means[name].copy_(value)

    torch.manual_seed(ctx.seed)
    module = Lit().to(ctx.dtype)
    ctx.initialize(module)
    ranks, rank = ctx.point.size("dp"), ctx.coordinates["dp"]
    _ = ctx.mesh
    x = torch.linspace(-1, 1, 4 * BATCH * PER_EPOCH * ranks, dtype=ctx.dtype).reshape(-1, 4).sin()
    loader: Any = Loader(x, rank, ranks)
    if fault == "position":
        loader = DataLoader(TensorDataset(x), BATCH)
    callback = lightning_callback(ctx)
    with tempfile.TemporaryDirectory() as folder:
        trainer = pl.Trainer(
            default_root_dir=folder,
            accelerator="cpu",
            devices=ranks,
            strategy="ddp" if ranks > 1 else "auto",
            use_distributed_sampler=False,
            max_steps=STEPS,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            callbacks=[Average(), callback],
        )
        trainer.fit(module, loader, ckpt_path=callback.checkpoint())
