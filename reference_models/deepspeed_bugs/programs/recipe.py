"""Recipe: the settings of a training, as torch's optimizer and as DeepSpeed's config."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

#: Learning rates.  SGD's is so large that a wrong step shows in the next loss.
RATES = {"SGD": 0.1, "AdamW": 0.01}

#: The number of steps of a warm-up; fewer are trained.
WARM_UP = 8


@dataclass(frozen=True, slots=True)
class Recipe:
    """The settings of one training; see `small.train`.  `clip` is a maximum norm, 0 for none."""

    microbatches: int
    steps: int
    optimizer: str = "SGD"
    groups: bool = False
    clip: float = 0.0
    contiguous: bool = True
    offload: bool = False
    wide_accumulation: bool = False
    by_hand: bool = False
    schedule: str = ""

    def optimizer_of(self, model: nn.Module) -> torch.optim.Optimizer:
        """torch's optimizer of the trained parameters."""
        rate = RATES[self.optimizer]
        held = [each for each in model.parameters() if each.requires_grad]
        params: Iterable[Any] = held
        if self.groups:
            matrices = {"params": [each for each in held if each.ndim > 1], "lr": rate}
            vectors = {"params": [each for each in held if each.ndim < 2], "lr": rate / 3}
            params = [matrices, vectors]
        if self.optimizer == "AdamW":
            return torch.optim.AdamW(params, lr=rate, weight_decay=0.1)
        return torch.optim.SGD(params, lr=rate, momentum=0.9)

    def warmth(self, step: int) -> float:
        """The fraction of its full learning rate that a parameter group has in a step.

        `step` is counted from 0.  With a warm-up the fraction is 0 in steps 0 and 1, and then grows
        linearly: DeepSpeed's scheduler starts to count, from 0, at step 1.  Without a warm-up the
        fraction is 1.
        """
        return max(0, step - 1) / WARM_UP if self.schedule else 1.0

    def config(self, stage: int, dtype: torch.dtype, dp: int) -> dict[str, Any]:
        """DeepSpeed's config for these settings, at a ZeRO stage, in a dtype and over dp ranks."""
        zero: dict[str, Any] = {
            "stage": stage,
            "contiguous_gradients": self.contiguous,
            "reduce_bucket_size": 100_000,
            "allgather_bucket_size": 100_000,
        }
        if stage == 3:
            zero["stage3_prefetch_bucket_size"] = 100_000
        if self.offload:
            zero["offload_optimizer"] = {"device": "cpu", "pin_memory": False}
        config: dict[str, Any] = {
            "train_micro_batch_size_per_gpu": 6,
            "gradient_accumulation_steps": 1 if self.by_hand else self.microbatches // dp,
            "gradient_clipping": self.clip,
            "zero_optimization": zero,
            "zero_allow_untested_optimizer": True,
            "zero_force_ds_cpu_optimizer": False,
            "steps_per_print": 2**31,
            "bf16": {"enabled": dtype == torch.bfloat16},
        }
        if self.wide_accumulation and dtype == torch.bfloat16:
            config["data_types"] = {"grad_accum_dtype": "fp32"}
        if self.schedule:
            parameters: dict[str, Any] = {"warmup_num_steps": WARM_UP, "warmup_type": "linear"}
            if self.schedule == "WarmupLR" and not self.groups:
                parameters["warmup_max_lr"] = RATES[self.optimizer]
            if self.schedule == "WarmupCosineLR":
                parameters["total_num_steps"] = 2 * WARM_UP
            config["scheduler"] = {"type": self.schedule, "params": parameters}
        return config
