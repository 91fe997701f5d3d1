"""A tiny GPT-2 with dropout under transformers' Trainer, which resumes from its own checkpoint."""

from __future__ import annotations

import tempfile
from typing import Any

import torch

from pytest_trainsafe.fixtures.transformers import trainer_callback
from tests.support.third_party.callbacks.trainer_program import LENGTH, TOKENS, Corpus


def train(ctx: Any, microbatches: int = 2, fault: str = "") -> None:
    """Five steps; `fault` names what a resumed training does not restore."""
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

    torch.manual_seed(ctx.seed)
    config = GPT2Config(
        vocab_size=TOKENS, n_positions=LENGTH, n_embd=16, n_layer=1, n_head=2, use_cache=False
    )
    model = GPT2LMHeadModel(config).to(ctx.dtype)
    ctx.initialize(model)

    class Loses(Trainer):
        def _load_rng_state(self, checkpoint: Any) -> None:
            if fault != "rng":
                super()._load_rng_state(checkpoint)

        def _load_optimizer_and_scheduler(self, checkpoint: Any) -> None:
            if fault != "optimizer":
                super()._load_optimizer_and_scheduler(checkpoint)

    callback = trainer_callback(ctx)
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=2,
            gradient_accumulation_steps=microbatches // ctx.point.size("dp"),
            max_steps=5,
            learning_rate=1e-2,
            use_cpu=True,
            report_to=[],
            save_strategy="no",
            disable_tqdm=True,
            ignore_data_skip=fault == "position",
            seed=ctx.seed,
        )
        trainer = Loses(model, arguments, train_dataset=Corpus(), callbacks=[callback])
        trainer.train(resume_from_checkpoint=callback.checkpoint())
