"""The recorder's adapter for DeepSpeed.

It does not import DeepSpeed: a program that uses DeepSpeed has imported it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from pytest_trainsafe.core.layout import Layout, Sizes
from pytest_trainsafe.core.point import Point
from pytest_trainsafe.frameworks.deepspeed.autotp import autotp_layout
from pytest_trainsafe.frameworks.deepspeed.engine import (
    engine_annotations,
    is_engine,
    listen_to_engine,
    parameter_adapter_of,
    reduces_in,
    separate_outputs,
    skipped,
)
from pytest_trainsafe.frameworks.deepspeed.experts import inside_layers, renumbering
from pytest_trainsafe.frameworks.deepspeed.loss_scale import LossScale
from pytest_trainsafe.frameworks.deepspeed.streams import follow_tracker, stream_in_use
from pytest_trainsafe.record.adapter import Adapter, Engine, ParameterAdapter, Parts, Rename


class DeepSpeed(Adapter):
    """The adapter for DeepSpeed's engine, ZeRO optimizers and experts, and for AutoTP's layouts."""

    per_rank = (
        ("deepspeed.comm.comm",),
        ("deepspeed.utils.groups",),
        ("deepspeed", "dist"),
        ("deepspeed.runtime.zero.partition_parameters", "zero_init_context", "top_level_context"),
        ("deepspeed.runtime.zero.partition_parameters", "reuse_buffers", "temp_contiguous_tensor"),
        ("deepspeed.runtime.zero.partition_parameters", "empty_buffers"),
        ("deepspeed.runtime.zero.partition_parameters", "Init.param_id"),
        ("deepspeed.runtime.zero.parameter_offload", "FWD_MODULE_STACK"),
        (
            "deepspeed.runtime.zero.parameter_offload",
            "DeepSpeedZeRoOffload._register_deepspeed_module.__defaults__",
        ),
        ("deepspeed.runtime.activation_checkpointing.checkpointing",),
        ("deepspeed.runtime.pipe.p2p",),
        ("deepspeed.module_inject.layers", "DEEPSPEED_AUTOTP_MODE"),
        ("deepspeed.runtime.torch_autocast",),
    )

    def engine(self, model: object) -> Engine | None:
        """The engine as the recorder's `Engine`, if `model` is a `DeepSpeedEngine`; else None."""
        follow_tracker()
        return _Engine(model) if is_engine(model) else None

    def parameter_adapter(self, optimizer: Any, point: Point) -> ParameterAdapter | None:
        """The parameter adapter for a DeepSpeed optimizer; None for any other optimizer."""
        return parameter_adapter_of(optimizer, point)

    def renaming(self, parts: Parts, point: Point, coordinates: Mapping[str, int]) -> Rename | None:
        """The function that renumbers experts by their position in the whole model."""
        return renumbering(parts, point, coordinates)

    def local_modules(self, parts: Parts) -> tuple[str, ...]:
        """The name prefixes of the modules inside MoE layers."""
        return inside_layers(parts)

    def rng_stream(self) -> str:
        """The name of the random stream of DeepSpeed's tracker that is in use; "" for none."""
        return stream_in_use()

    def layout(self, name: str, parameter: Any, sizes: Sizes) -> Layout | None:
        """The layout of a parameter that AutoTP has processed; None for any other parameter."""
        return autotp_layout(name, parameter, sizes)


class _Engine:
    """Implements the recorder's `Engine` protocol for DeepSpeed's engine."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self._scale: LossScale | None = None

    @property
    def module(self) -> Any:
        return self._engine.module

    @property
    def optimizer(self) -> Any:
        return self._engine.optimizer

    def annotations(self, names: Mapping[nn.Module, str]) -> dict[str, Any]:
        return engine_annotations(names)

    def reduces_in(self) -> str:
        return reduces_in(self._engine)

    def attach(self) -> None:
        separate_outputs(self._engine)
        self._scale = LossScale(self._engine)

    def listen(self, before: Callable[[bool], None], after: Callable[[], None]) -> None:
        listen_to_engine(self._engine, before, after)

    def unscaled(self, grad: torch.Tensor) -> torch.Tensor:
        return grad if self._scale is None else self._scale.undone(grad)

    def skipped(self) -> str:
        return skipped(self._engine)
