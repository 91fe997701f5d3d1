"""ZeRO 1: a checkpoint that is exported to float32 weights has lost the frozen ones, in silence.

DS_ACCELERATOR=cpu torchrun --nproc-per-node 1 stage1_frozen_export.py
"""

import tempfile

import deepspeed
import torch
from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint

deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # plain gloo, nothing to compile
deepspeed.init_distributed("gloo")


def exported(stage):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    model[0].requires_grad_(False)
    trained = torch.optim.AdamW(model[1].parameters(), lr=0.1)
    config = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": stage}}
    engine = deepspeed.initialize(model=model, optimizer=trained, config=config)[0]
    engine.backward(engine(torch.ones(1, 4)).square().mean())
    engine.step()
    with tempfile.TemporaryDirectory() as directory:
        engine.save_checkpoint(directory, tag="saved")
        weights = get_fp32_state_dict_from_zero_checkpoint(directory, tag="saved")
    return sorted(weights)


for stage in (2, 1):
    names = exported(stage)
    print(f"stage {stage}: {names}")
raise SystemExit(0 if names == ["0.bias", "0.weight", "1.bias", "1.weight"] else 3)
