"""A tiny GPT-2 under transformers' Trainer, marked by the callback."""

from __future__ import annotations

import tempfile
from typing import Any

import torch

from pytest_trainsafe.fixtures.transformers import trainer_callback

TOKENS, LENGTH, BATCH = 32, 8, 2

#: The Trainer's loss is a mean over a rank's own samples, and DistributedDataParallel averages the
#: gradients over ranks.
MEANS = {"gradients": {"mean": ["dp"]}}


class Corpus(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """Rows of random tokens; the index of a row is the seed of its tokens."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        draw = torch.Generator().manual_seed(index)
        tokens = torch.randint(TOKENS, (LENGTH,), generator=draw)
        return {"input_ids": tokens, "labels": tokens}


def train(ctx: Any, microbatches: int = 4, level: str = "microbatch", fault: str = "") -> None:
    """Two steps; `fault` is "order" for wrong micro-batch numbers, "rate" for a wrong rate."""
    from torch.utils.data import SequentialSampler
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

    torch.manual_seed(ctx.seed)
    ranks = ctx.point.size("dp")
    config = GPT2Config(
        vocab_size=TOKENS,
        n_positions=LENGTH,
        n_embd=16,
        n_layer=1,
        n_head=2,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        use_cache=False,
    )
    model = GPT2LMHeadModel(config).to(ctx.dtype)
    ctx.initialize(model)

    class InOrder(Trainer):
        def _get_train_sampler(self, *args: Any) -> Any:
            return SequentialSampler(self.train_dataset)

    rate = 2e-2 if fault == "rate" and ranks > 1 else 1e-2
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=BATCH,
            gradient_accumulation_steps=microbatches // ranks,
            max_steps=2,
            learning_rate=rate,
            lr_scheduler_type="constant",
            max_grad_norm=0.5,
            use_cpu=True,
            report_to=[],
            save_strategy="no",
            disable_tqdm=True,
            dataloader_num_workers=0,
        )
        marks = trainer_callback(
            ctx,
            MEANS,
            level=level,  # type: ignore[arg-type]
            order="contiguous" if fault == "order" else "strided",
        )
        InOrder(model, arguments, train_dataset=Corpus(), callbacks=[marks]).train()
