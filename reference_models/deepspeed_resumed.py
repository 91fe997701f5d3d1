"""A DeepSpeed training that can be interrupted: it saves a checkpoint, or resumes from one.

Importing this module imports neither torch nor DeepSpeed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytest_trainsafe.sweep.traits import Traits, give_traits
from pytest_trainsafe.sweep.validity import divides, requires

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_trainsafe.record.context import Context

MICROBATCHES = 4

#: The names of checkpoints in their folder: one as DeepSpeed saves it, and one that is converted
#: so that it can be loaded with another parallel layout.
SAVED, UNIVERSAL = "saved", "universal"


@requires(divides("heads", "tp"))
def train(
    ctx: Context, steps: int = 4, universal: bool = False, lost: str = "", heads: int = 2
) -> None:
    """Trains a small GPT with DeepSpeed until `steps` steps are done.

    The context decides whether this Run saves a checkpoint after a step (`ctx.save`), or first
    loads one and continues from its step (`ctx.load`).  With `universal`, the Run that saves also
    converts DeepSpeed's checkpoint to a universal one, and the Run that resumes loads the universal
    one.  `lost` plants a fault: after the conversion, the values in all files of the universal
    checkpoint that match this pattern are set to zero; "" plants none.
    """
    from pytest_trainsafe.fixtures.deepspeed.engine import initialize
    from pytest_trainsafe.reference_models.plain.gpt import PlainGPT, Sizes, text

    sizes = Sizes(layers=1, hidden=16, heads=heads, seq_len=8)
    model = PlainGPT(sizes).to(ctx.device, ctx.dtype)
    ctx.initialize(model)
    # The config says whether the checkpoint to load is a universal one, before it is loaded.
    resumed = ctx.first_step > 0
    engine = initialize(ctx, model, config(ctx, resumed and universal))
    with ctx.load() as folder:
        if folder is not None:
            engine.load_checkpoint(str(folder), tag=UNIVERSAL if universal else SAVED)
    ctx.watch(engine)
    for step in ctx.steps(steps):
        with ctx.step():
            for index in ctx.microbatches(MICROBATCHES):
                with ctx.microbatch(index):
                    loss = engine(*text(sizes, step, index, 2))
                    engine.backward(loss)
                    engine.step()
                    ctx.loss(loss)
        with ctx.save() as folder:
            if folder is not None:
                engine.save_checkpoint(str(folder), tag=SAVED)
                if universal:
                    _convert(folder, ctx.rank, lost)


give_traits(train, Traits(dtypes=("float32", "bfloat16")))  # master weights are float32


def _convert(folder: Path, rank: int, lost: str) -> None:
    """Converts the checkpoint in `folder` to a universal one; rank 0 does so, the others wait.

    The values in files of the universal checkpoint that match the pattern `lost` are set to zero.
    """
    import argparse

    import torch
    import torch.distributed as dist
    from deepspeed.checkpoint.ds_to_universal import main

    dist.barrier()
    if rank == 0:
        options = {
            "input_folder": f"{folder}/{SAVED}",
            "output_folder": f"{folder}/{UNIVERSAL}",
            "num_extract_workers": 1,
            "num_merge_workers": 1,
            "keep_temp_folder": False,
            "strict": True,
            "inject_missing_state": True,
        }
        main(argparse.Namespace(**options))
        for file in (folder / UNIVERSAL).rglob(lost) if lost else ():
            held = torch.load(file, weights_only=True)
            held["param"].zero_()
            torch.save(held, file)
    dist.barrier()


def config(ctx: Context, universal: bool) -> dict[str, Any]:
    """DeepSpeed's config for this Point: AdamW with a warm-up, and gradient clipping.

    With `universal`, a universal checkpoint can be loaded.
    """
    warmup = {"warmup_min_lr": 1e-3, "warmup_max_lr": 1e-2, "warmup_num_steps": 4}
    made: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": MICROBATCHES // ctx.point.size("dp"),
        "gradient_clipping": 0.1,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "torch_adam": True}},
        "scheduler": {"type": "WarmupLR", "params": warmup},
        "zero_optimization": {"stage": int(ctx.point.get("zero", 0))},
        "bf16": {"enabled": str(ctx.dtype) == "torch.bfloat16"},
        "checkpoint": {"load_universal": universal},
    }
    if ctx.point.size("tp") > 1:
        from pytest_trainsafe.reference_models.deepspeed_gpt import CONFIG

        tensor_parallel: Any = CONFIG["tensor_parallel"]
        made["tensor_parallel"] = {**tensor_parallel, "autotp_size": ctx.point.size("tp")}
    return made
