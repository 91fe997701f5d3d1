"""Universal checkpoints at stage 3: every parameter group gets the first one's hyperparameters.

DS_ACCELERATOR=cpu torchrun --nproc-per-node 1 universal_stage3_groups.py
"""

import tempfile
from argparse import Namespace

import deepspeed
import torch
from deepspeed.checkpoint.ds_to_universal import main as to_universal

deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # plain gloo, nothing to compile
deepspeed.init_distributed("gloo")


def engine(universal):
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 4)
    groups = [
        {"params": [model.weight], "weight_decay": 0.1},
        {"params": [model.bias], "weight_decay": 0.0, "lr": 0.5},
    ]
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "zero_optimization": {"stage": 3},
        "checkpoint": {"load_universal": universal},
    }
    return deepspeed.initialize(
        model=model, optimizer=torch.optim.AdamW(groups, lr=0.1), config=config
    )[0]


def hyperparameters(engine):
    return [(group["lr"], group["weight_decay"]) for group in engine.optimizer.param_groups]


with tempfile.TemporaryDirectory() as directory:
    saved = engine(False)
    saved.backward(saved(torch.ones(1, 4)).square().mean())
    saved.step()
    saved.save_checkpoint(directory, tag="saved")
    options = {"num_extract_workers": 1, "num_merge_workers": 1, "keep_temp_folder": False}
    paths = {"input_folder": f"{directory}/saved", "output_folder": f"{directory}/universal"}
    to_universal(Namespace(**options, **paths, strict=True, inject_missing_state=False))
    loaded = engine(True)
    loaded.load_checkpoint(directory, tag="universal")
print(f"lr and weight decay of the groups: saved {hyperparameters(saved)}")
print(f"after loading {hyperparameters(loaded)}")
raise SystemExit(0 if hyperparameters(loaded) == hyperparameters(saved) else 3)
