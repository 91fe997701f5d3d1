"""Recognises DeepSpeed's engine and optimizers, and finds the values that they hold.

Called by the recorder.  Nothing here imports deepspeed: a program that uses it has imported it.
Optimizers are recognised by their attributes, because their classes moved between releases.
Nothing here calls a collective: each rank computes which range of a flattened parameter it holds.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from pytest_trainsafe.compat.compiler import disabled
from pytest_trainsafe.core.point import Point
from pytest_trainsafe.frameworks.deepspeed.autotp import autotp_output
from pytest_trainsafe.frameworks.deepspeed.copies import FlatCopies, UnfusedCopies
from pytest_trainsafe.frameworks.deepspeed.zero import FlatPartitions
from pytest_trainsafe.frameworks.deepspeed.zero3 import PartitionedParameters
from pytest_trainsafe.record.adapter import ParameterAdapter


def is_engine(model: object) -> bool:
    """Whether this is DeepSpeed's engine, including its pipeline engine."""
    deepspeed: Any = sys.modules.get("deepspeed")
    engine = getattr(deepspeed, "DeepSpeedEngine", None)
    return isinstance(engine, type) and isinstance(model, engine)


def parameter_adapter_of(optimizer: Any, point: Point) -> ParameterAdapter | None:
    """The parameter adapter for a DeepSpeed optimizer; None for any other optimizer."""
    if not type(optimizer).__module__.startswith("deepspeed."):
        return None
    if hasattr(optimizer, "fp32_partitioned_groups_flat"):
        return PartitionedParameters(optimizer, point)
    if hasattr(optimizer, "single_partition_of_fp32_groups"):
        return FlatPartitions(optimizer, point, "single_partition_of_fp32_groups")
    if hasattr(optimizer, "fp32_groups_flat_partition"):
        return FlatPartitions(optimizer, point, "fp32_groups_flat_partition")
    if hasattr(optimizer, "fp32_groups"):
        return UnfusedCopies(optimizer)
    if hasattr(optimizer, "fp32_groups_flat"):
        return FlatCopies(optimizer)
    return None


def listen_to_engine(
    engine: Any, before: Callable[[bool], None], after: Callable[[], None]
) -> None:
    """Makes the engine call `before(False)` before an optimizer step, and `after()` after it.

    The argument of `before` says whether the step has a closure that computes the gradients; a step
    of the engine has none.
    `before` is called when gradients are reduced but not yet clipped.  A hook on the optimizer
    would be too late, because DeepSpeed's stage 0 clips before it calls the optimizer.
    """
    take = engine._take_model_step

    @functools.wraps(take)
    def watched(*args: Any, **kwargs: Any) -> Any:
        before(False)
        result = take(*args, **kwargs)
        after()
        return result

    engine._take_model_step = watched


def separate_outputs(engine: Any) -> None:
    """Makes the engine's module return copies of its outputs, so that the engine hooks the copies.

    Since 0.18.3, DeepSpeed hooks the tensors that its forward returns, and may divide their
    gradients by the number of accumulation steps there.  Hooks of a tensor run in the order of
    registration.  Without copies, the recorder's hook on an output would see its gradient before
    this division, but hooks inside the model would see gradients after it.  With copies, the
    engine's hook always runs first.  Must be called after the recorder's hooks are installed.
    """
    engine.module.register_forward_hook(disabled(_copied))


def _copied(_module: nn.Module, _inputs: object, output: Any) -> Any:
    """The model's output, in which a clone replaces every tensor that has a grad_fn."""
    if isinstance(output, torch.Tensor):
        return output if output.grad_fn is None else output.clone()
    if isinstance(output, dict):  # or a subclass, such as the output classes of transformers
        for key, value in output.items():
            output[key] = _copied(_module, _inputs, value)
        return output
    if isinstance(output, tuple | list):
        values = [_copied(_module, _inputs, value) for value in output]
        make = getattr(type(output), "_make", type(output))  # a named tuple needs `_make`
        return make(values)
    return output


def engine_annotations(names: Mapping[nn.Module, str]) -> dict[str, Any]:
    """The annotations that DeepSpeed implies: gradients averaged over dp, and AutoTP's outputs."""
    outputs = {name: autotp_output(module) for module, name in names.items()}
    return {
        "gradients": {"mean": ["dp"]},
        "modules": {name: {"output": entry} for name, entry in outputs.items() if entry},
    }


def reduces_in(engine: Any) -> str:
    """The name of the dtype in which the engine reduces gradients; "" if it is not configured."""
    dtype = getattr(engine, "communication_data_type", None)
    return str(dtype).removeprefix("torch.") if dtype is not None else ""


def skipped(engine: Any) -> str:
    """Why the engine skipped its last step; "" if it did not."""
    if not getattr(engine.optimizer, "overflow", False):
        return ""
    why = "DeepSpeed found gradients that are not finite"
    if not engine.fp16_enabled():
        return why
    return f"{why}; set a smaller fp16.initial_scale_power, or a fixed fp16.loss_scale"
