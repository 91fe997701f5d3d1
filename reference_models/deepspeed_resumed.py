"""A DeepSpeed training that can be interrupted: it saves a checkpoint, or goes on from one.

Importing this module imports neither torch nor DeepSpeed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pytest_trainsafe.record.context import Context

MICROBATCHES = 4


def train(
    ctx: Context, first: int = 0, last: int = 4, save: str = "", save_before: int = 2
) -> None:
    """Train the steps `first` to `last`, the last left out, of a small GPT.

    Where `first` is not 0, the checkpoint in the folder `save` is loaded; where it is, one is saved
    there before the step `save_before`.  Steps are recorded from 0 on whatever `first` is.
    """
    from pytest_trainsafe.fixtures.deepspeed_engine import initialize
    from pytest_trainsafe.reference_models.plain_gpt import PlainGPT, Sizes, text

    sizes = Sizes(layers=1, hidden=16, heads=2, seq_len=8)
    model = PlainGPT(sizes).to(ctx.device, ctx.dtype)
    ctx.initialize(model)
    engine = initialize(ctx, model, config(ctx))
    if first:
        engine.load_checkpoint(save)
    ctx.watch(engine)
    for step in range(first, last):
        if save and not first and step == save_before:
            engine.save_checkpoint(save)
        with ctx.step():
            for index in ctx.microbatches(MICROBATCHES):
                with ctx.microbatch(index):
                    loss = engine(*text(sizes, step, index, 2))
                    ctx.loss(loss)
                    engine.backward(loss)
                engine.step()


def config(ctx: Context) -> dict[str, Any]:
    """AdamW behind a warm-up, clipping that acts, and what the Point says."""
    warmup = {"warmup_min_lr": 1e-3, "warmup_max_lr": 1e-2, "warmup_num_steps": 4}
    return {
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": MICROBATCHES // ctx.point.size("dp"),
        "gradient_clipping": 0.1,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "torch_adam": True}},
        "scheduler": {"type": "WarmupLR", "params": warmup},
        "zero_optimization": {"stage": int(ctx.point.get("zero", 0))},
        "bf16": {"enabled": str(ctx.dtype) == "torch.bfloat16"},
    }
