"""Puts earlier bugs back into the installed DeepSpeed.

Called in a rank before it makes an engine.  Each function here plants one bug, by changing the code
that the bug's fix changed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def plant(name: str) -> None:
    """Plants a bug of the catalogue; raises ValueError for one that cannot be planted."""
    if name not in PLANTS:
        raise ValueError(f"the bug {name!r} cannot be planted; choose one of {', '.join(PLANTS)}")
    PLANTS[name]()


def clip_on_one_tp_rank() -> None:
    """Makes each rank clip only the gradients that it counts in the norm (before #1801 was merged).

    Parameters that tp replicates are counted only on tp rank 0, so they are clipped only there.
    """
    from deepspeed.runtime.bf16_optimizer import BF16_Optimizer

    original = BF16_Optimizer.get_grads_for_norm

    def of_the_norm(self: Any, for_clipping: bool = False) -> Any:
        if not for_clipping:
            return original(self)
        counted, experts = original(self)
        return [*counted, *(each for group in experts.values() for each in group)]

    BF16_Optimizer.get_grads_for_norm = of_the_norm


def step_at_start() -> None:
    """Makes the optimizer take a step with zero gradients when it is wrapped (fixed by #5104)."""
    from deepspeed.runtime.zero.stage_1_and_2 import DeepSpeedZeroOptimizer

    original = DeepSpeedZeroOptimizer.initialize_optimizer_states

    def and_step(self: Any) -> None:
        original(self)
        for part in self.single_partition_of_fp32_groups:
            part.grad = torch.zeros_like(part)
        self.optimizer.step()
        for part in self.single_partition_of_fp32_groups:
            part.grad = None

    DeepSpeedZeroOptimizer.initialize_optimizer_states = and_step


def clip_upwards() -> None:
    """Makes the clipping coefficient at least one, instead of at most one (fixed by #5150)."""
    import deepspeed.runtime.engine as engine

    def clip(parameters: Any, max_norm: float, norm_type: float = 2, mpu: Any = None) -> Any:
        held = [each for each in parameters if each.grad is not None]
        norms = [torch.linalg.vector_norm(each.grad, norm_type) for each in held]
        norm = torch.linalg.vector_norm(torch.stack(norms), norm_type)
        coefficient = torch.max(torch.ones(()), max_norm / (norm + 1e-6))
        for each in held:
            each.grad.mul_(coefficient)
        return norm

    engine.clip_grad_norm_ = clip


def lose_later_gradients() -> None:
    """Makes an offloaded optimizer accumulate only the first micro-batch (fixed by #7967)."""
    from deepspeed.runtime.zero.stage_1_and_2 import DeepSpeedZeroOptimizer

    original = DeepSpeedZeroOptimizer.async_accumulate_grad_in_cpu_via_gpu

    def keep_the_first(self: Any, param: Any) -> None:
        held = self.accumulated_grads_in_cpu.get(self.get_param_id(param))
        kept = held.clone() if held is not None and self.micro_step_id > 0 else None
        original(self, param)
        if kept is not None:
            held.copy_(kept)

    DeepSpeedZeroOptimizer.async_accumulate_grad_in_cpu_via_gpu = keep_the_first


def reduce_before_the_last() -> None:
    """Reduces gradients before the last micro-batch is added to them (fixed by #7985)."""
    from deepspeed.runtime.bf16_optimizer import BF16_Optimizer
    from deepspeed.runtime.engine import DeepSpeedEngine

    add = BF16_Optimizer.backward_epilogue
    reduce = DeepSpeedEngine.allreduce_gradients

    def reduce_then_add(self: Any, *args: Any, **kwargs: Any) -> None:
        reduce(self, *args, **kwargs)
        if isinstance(self.optimizer, BF16_Optimizer):
            add(self.optimizer)

    BF16_Optimizer.backward_epilogue = lambda self: None
    DeepSpeedEngine.allreduce_gradients = reduce_then_add


def match_no_tensor_of_a_cpu() -> None:
    """Makes ZeRO without contiguous gradients reduce no gradient on a CPU (fixed by #8382).

    The planted function selects gradients by type names that tensors on a CPU do not have.
    """
    import deepspeed.runtime.zero.stage_1_and_2 as zero
    from deepspeed.accelerator import get_accelerator

    def by_name(tensors: Any) -> list[list[torch.Tensor]]:
        device = get_accelerator().device_name()
        kinds = ("HalfTensor", "FloatTensor", "DoubleTensor", "BFloat16Tensor")
        names = [f"torch.{device}.{kind}" for kind in kinds]
        buckets = [[each for each in tensors if each.type() == name] for name in names]
        return [bucket for bucket in buckets if bucket]

    zero.split_half_float_double = by_name


#: The function that plants a bug, by the bug's name in the catalogue.
PLANTS: dict[str, Callable[[], None]] = {
    "ds-1801": clip_on_one_tp_rank,
    "ds-5104": step_at_start,
    "ds-5150": clip_upwards,
    "ds-7967": lose_later_gradients,
    "ds-7985": reduce_before_the_last,
    "ds-8382": match_no_tensor_of_a_cpu,
}
