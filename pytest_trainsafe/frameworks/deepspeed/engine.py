"""Recognises DeepSpeed's engine and optimizers, and finds what they hold.

Called by the recorder.  Nothing here imports deepspeed: a program that uses it has imported it.
Optimizers are told by what they keep, not by their class, which has moved between releases.
No collective is made: each rank says which run of a flattened parameter it holds.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from pytest_trainsafe.core.point import Point
from pytest_trainsafe.frameworks.deepspeed.autotp import autotp_output
from pytest_trainsafe.frameworks.deepspeed.copies import FlatCopies, UnfusedCopies
from pytest_trainsafe.frameworks.deepspeed.zero import FlatPartitions
from pytest_trainsafe.frameworks.deepspeed.zero3 import PartitionedParameters
from pytest_trainsafe.record.training.holdings import Holdings


def is_engine(model: object) -> bool:
    """Whether this is DeepSpeed's engine, a pipeline's included."""
    deepspeed: Any = sys.modules.get("deepspeed")
    engine = getattr(deepspeed, "DeepSpeedEngine", None)
    return isinstance(engine, type) and isinstance(model, engine)


def holdings_of(optimizer: Any, point: Point) -> Holdings | None:
    """What DeepSpeed's optimizer holds of each parameter; None for an optimizer of another kind."""
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
    """Call `before(False)` when gradients are reduced and not yet clipped, `after()` at the end.

    DeepSpeed's stage 0 clips before it calls the optimizer, so the optimizer hears too late.
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
    """Let the engine hook tensors of its own, not those whose gradients are recorded.

    Releases since 0.18.3 hook what their forward returns, and may divide its gradient by the
    number of accumulation steps there.  Hooks run in the order in which they were registered, so
    that one of the recorder on the same tensor sees the gradient before this division, and modules
    below see it afterwards.  On a copy the engine's hook runs first, whatever it does.
    Called after the recorder's hooks are installed.
    """
    hook: Any = torch.compiler.disable(_copied)  # type: ignore[no-untyped-call]
    engine.module.register_forward_hook(hook)


def _copied(_module: nn.Module, _inputs: object, output: Any) -> Any:
    """The output of the whole model, each tensor that has a history copied."""
    if isinstance(output, torch.Tensor):
        return output if output.grad_fn is None else output.clone()
    if isinstance(output, dict):  # of any class: the output classes of transformers are such
        for key, value in output.items():
            output[key] = _copied(_module, _inputs, value)
        return output
    if isinstance(output, tuple | list):
        values = [_copied(_module, _inputs, value) for value in output]
        make = getattr(type(output), "_make", type(output))  # a named tuple takes no iterable
        return make(values)
    return output


def engine_annotations(names: Mapping[nn.Module, str]) -> dict[str, Any]:
    """What a user would annotate: gradients are averaged over dp, and AutoTP cuts outputs."""
    outputs = {name: autotp_output(module) for module, name in names.items()}
    return {
        "gradients": {"mean": ["dp"]},
        "modules": {name: {"output": entry} for name, entry in outputs.items() if entry},
    }


def reduces_in(engine: Any) -> str:
    """The dtype in which the engine reduces gradients over ranks; "" where it does not say."""
    dtype = getattr(engine, "communication_data_type", None)
    return str(dtype).removeprefix("torch.") if dtype is not None else ""


def skipped(engine: Any) -> str:
    """Why the engine left out its last step; "" where it did not."""
    if not getattr(engine.optimizer, "overflow", False):
        return ""
    why = "DeepSpeed found gradients that are not finite"
    if not engine.fp16_enabled():
        return why
    return f"{why}; take a smaller fp16.initial_scale_power, or a loss_scale"
