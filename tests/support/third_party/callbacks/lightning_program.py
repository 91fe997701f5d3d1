"""A small network under Lightning's Trainer, marked by the callback."""

from __future__ import annotations

import tempfile
from typing import Any

import torch
from torch import nn

from pytest_trainsafe.fixtures.lightning import lightning_callback

BATCH = 2
MEANS = {"gradients": {"mean": ["dp"]}}


class Examples(torch.utils.data.Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Vectors and classes; the index of a pair is its seed."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        draw = torch.Generator().manual_seed(index)
        vector = torch.randn(6, generator=draw, dtype=torch.float64).to(self.dtype)
        return vector, torch.randint(3, (), generator=draw)


class WholeBatches(torch.utils.data.Sampler[list[int]]):
    """A sampler that distributes whole batches to dp ranks in turn."""

    def __init__(self, rank: int, ranks: int) -> None:
        self.rank, self.ranks = rank, ranks

    def __len__(self) -> int:
        return 16 // BATCH // self.ranks

    def __iter__(self) -> Any:
        for number in range(self.rank, 16 // BATCH, self.ranks):
            yield list(range(number * BATCH, (number + 1) * BATCH))


def train(ctx: Any, microbatches: int = 4, level: str = "step", fault: str = "") -> None:
    """Two steps of Lightning; at the level "microbatch" with a sampler of whole batches."""
    import lightning.pytorch as pl

    ranks, rank = ctx.point.size("dp"), ctx.coordinates["dp"]
    _ = ctx.mesh

    class Lit(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))

        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            loss = nn.functional.cross_entropy(self.net(batch[0]), batch[1])
            return loss * 1.5 if fault == "loss" and rank else loss

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters(), lr=1e-2)

    module = Lit().to(ctx.dtype)
    ctx.initialize(module)
    examples = Examples(ctx.dtype)
    # Lightning's own sampler would shuffle by a seed that a single device does not use.
    deal: Any = torch.utils.data.DistributedSampler(examples, ranks, rank, shuffle=False)
    loader = (
        torch.utils.data.DataLoader(examples, batch_sampler=WholeBatches(rank, ranks))
        if level == "microbatch"
        else torch.utils.data.DataLoader(examples, batch_size=BATCH, sampler=deal)
    )
    with tempfile.TemporaryDirectory() as folder:
        trainer = pl.Trainer(
            default_root_dir=folder,
            accelerator="cpu",
            devices=ranks,
            strategy="ddp" if ranks > 1 else "auto",
            max_epochs=1,
            accumulate_grad_batches=microbatches // ranks,
            gradient_clip_val=0.5,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            use_distributed_sampler=False,
            callbacks=[lightning_callback(ctx, MEANS, level=level)],  # type: ignore[arg-type]
        )
        trainer.fit(module, loader)
