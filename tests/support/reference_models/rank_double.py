"""A test double of the recording Context, and real ranks that run programs with it.

It keeps the tensors that the Context records: activations, their gradients, gradients before and
after the reduction, parameters, losses and norms, each with its layout.  The package merges them.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec
import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from pytest_trainsafe.align.merge import Part, merge
from pytest_trainsafe.annotations.declared import Annotations
from pytest_trainsafe.core.indices import scale_shape
from pytest_trainsafe.core.layout import Layout, Owned, Partial
from pytest_trainsafe.core.point import MESH_AXES, Point
from pytest_trainsafe.launch import Launcher, Task, raise_for_failure
from pytest_trainsafe.launch.resources.locks import wait_lock
from pytest_trainsafe.record.hooks.outputs import tensors_in
from pytest_trainsafe.record.layouts.flat_ranges import optimizer_range
from pytest_trainsafe.record.model.consistent import consistent_tensor
from pytest_trainsafe.record.model.parameter_layout import gradient_partial_axes, parameter_layout
from pytest_trainsafe.record.model.parts import (
    named_modules,
    named_parameters,
    parts_of,
    unique_parameters,
)
from pytest_trainsafe.reference_models import cnn, deepseek, gpt, llama, lstm, moe

PROGRAMS: dict[str, Callable[..., None]] = {
    "gpt": gpt.train,
    "llama": llama.train,
    "moe": moe.train,
    "deepseek": deepseek.train,
    "cnn": cnn.train,
    "lstm": lstm.train,
}


#: Modules that are divided among the stages of a pipeline.
CUT_BY_PP = ("", "decoder")


@dataclass(frozen=True)
class Job:
    """One run of a reference program: its Point, arguments and dtype."""

    point: Point = field(default_factory=Point)
    arguments: Mapping[str, Any] = field(default_factory=dict)
    dtype: str = "float64"
    program: str = "gpt"


@dataclass
class Outcome:
    """Logical tensors by key, in recorded order, and the findings of merging them."""

    tensors: dict[str, Tensor]
    findings: dict[str, list[str]]

    def loss(self, step: int) -> float:
        """The mean loss of a step's micro-batches."""
        keys = [key for key in self.tensors if key.startswith("loss ") and key.endswith(f" {step}")]
        return float(torch.stack([self.tensors[key] for key in keys]).mean())

    def errors(self, right: Outcome) -> dict[str, float]:
        """The relative error of every tensor, infinite where it is missing or does not fit."""
        assert self.tensors.keys() <= right.tensors.keys()
        return {
            key: math.inf
            if key in self.findings
            or key not in self.tensors
            or self.tensors[key].shape != value.shape
            else float((self.tensors[key] - value).norm() / value.norm())
            for key, value in right.tensors.items()
        }


class Double:
    """Has the members of the Context that a program may use, and keeps parts by key.

    A key is "kind path microbatch step".
    """

    def __init__(self, job: Job, mesh: Any = None) -> None:
        self.point, self.seed = job.point, 3
        self.dtype: torch.dtype = getattr(torch, job.dtype)
        self.device = torch.device("cpu")
        self.world_size = self.point.world_size
        self.rank = dist.get_rank() if mesh is not None else 0
        self.coordinates = self.point.coordinates(self.rank)
        self.mesh = mesh
        self.parts: dict[str, Part] = {}
        self.number = -1
        self.index: int | None = None
        # With wider dtypes a single device has no master weights, so ZeRO's are not kept.
        self._keeps_masters = job.dtype == "bfloat16"

    def steps(self, total: int) -> range:
        return range(total)

    def group(self, axis: str) -> Any:
        return self.mesh.get_group(axis)

    @torch.no_grad()
    def initialize(self, model: nn.Module) -> None:
        for name, parameter in _named(model).items():
            layout, sizes = self._layout(name, parameter), self.point.sizes
            shape = scale_shape(tuple(parameter.shape), layout, sizes)
            matrix, scale = len(shape) > 1, name.endswith("norm.weight")
            values = consistent_tensor(
                name,
                shape,
                mean=1.0 if scale else 0.0,
                std=shape[-1] ** -0.5 if matrix else 0.1 if scale else 0.02,
                dtype=self.dtype,
                seed=self.seed,
                layout=layout,
                coordinates=self.coordinates,
                sizes=sizes,
            )
            parameter.copy_(values)

    def watch(self, model: nn.Module, optimizer: Any, annotations: Mapping[str, Any]) -> None:
        self.parameters = _named(model)
        self.annotations = Annotations.of(annotations)
        modules = named_modules(parts_of(model))
        self.unmatched = self.annotations.unmatched(self.parameters, modules.values())
        for module, name in modules.items():
            # The output of a pipeline stage is not the output of the whole model.
            if self.point.size("pp") == 1 or name not in CUT_BY_PP:
                module.register_forward_hook(self._on_output(name))
        for name, parameter in self.parameters.items():
            parameter.register_hook(self._on_gradient(name, parameter))
        optimizer.register_step_pre_hook(self._on_optimizer)

    @contextmanager
    def step(self) -> Iterator[None]:
        self.number += 1
        yield
        for name, parameter in self.parameters.items():
            self._keep("param", name, parameter, self._layout(name, parameter))
            main_param = getattr(parameter, "main_param", None)
            if main_param is not None and self._keeps_masters:
                layout = self._layout(name, parameter)
                run = optimizer_range(name, parameter, self.point.sizes)
                layout = layout if run is None else (*layout, run)
                self._keep("master_param", name, main_param, layout)

    def microbatches(self, total: int) -> range:
        share = total // self.point.size("dp")
        first = self.coordinates["dp"] * share
        return range(first, first + share)

    @contextmanager
    def microbatch(self, index: int) -> Iterator[None]:
        self.index = index
        yield
        self.index = None

    def loss(self, value: Tensor, microbatch: int) -> None:
        assert microbatch == self.index
        self._keep("loss", "", value, (self.annotations.loss(self.point) or ((),))[0])

    def before_clip(self, norm: Tensor, max_norm: float) -> None:
        pass

    def grad_norm(self, value: Tensor) -> None:
        self._keep("grad_norm", "", value, ())

    def _on_output(self, name: str) -> Any:
        def hook(_module: nn.Module, _args: object, output: object) -> None:
            for place, tensor in tensors_in(output):
                self._on_tensor(name, place, tensor)

        return hook

    def _on_tensor(self, name: str, place: str, tensor: Tensor) -> None:
        if self.annotations.local(name, self.point):
            return
        layout, of_gradient = (
            (self.annotations.module(name, place, self.point, tensor.shape, gradient) or ((),))[0]
            for gradient in (False, True)
        )
        path = name + place.removeprefix("output")
        if torch._C._current_graph_task_id() == -1:  # else it is recomputed
            self._keep("activation", path, tensor, layout)
        if tensor.requires_grad:
            before = of_gradient + self.annotations.unreduced(self.point)
            tensor.register_hook(lambda grad: self._keep("activation_grad", path, grad, before))

    def _on_gradient(self, name: str, parameter: nn.Parameter) -> Any:
        axes = gradient_partial_axes(name, parameter, self.point, Annotations.empty())
        layout = self._layout(name, parameter) + tuple(Partial(axis) for axis in axes)
        if any(isinstance(placement, Owned) for placement in layout):
            return lambda grad: None  # it sums micro-batches of several ranks
        layout += self.annotations.unreduced(self.point)
        return lambda grad: self._keep("param_grad", name, grad, layout)

    def _on_optimizer(self, *_: object) -> None:
        for name, parameter in self.parameters.items():
            gradient: Any = getattr(parameter, "main_grad", parameter.grad)
            layout = self._layout(name, parameter)
            run = optimizer_range(name, parameter, self.point.sizes)
            if run is not None:
                gradient = gradient.reshape(-1)[run.offset : run.offset + run.length]
                layout = (*layout, run)
            self._keep("main_grad", name, gradient, layout)

    def _layout(self, name: str, parameter: nn.Parameter) -> Layout:
        return parameter_layout(name, parameter, self.point, Annotations.empty())[0]

    def _keep(self, kind: str, name: str, tensor: Tensor, layout: Layout) -> None:
        key = f"{kind} {name or '.'} {'-' if self.index is None else self.index} {self.number}"
        assert key not in self.parts, f"{key} was recorded twice"
        value = tensor.detach().clone()
        self.parts[key] = Part(self.rank, self.coordinates, value, layout)


def _named(model: Any) -> dict[str, nn.Parameter]:
    return unique_parameters(named_parameters(parts_of(model)))


def run_here(job: Job) -> Outcome:
    """Run a job of one rank in this process."""
    double = Double(job)
    PROGRAMS[job.program](double, **job.arguments)
    return _outcome(job, [double.parts])


class Outcomes:
    """Outcomes by name.  Each is made when a test needs it, since all of them take gigabytes."""

    def __init__(self, make: Callable[[str], Outcome]) -> None:
        self._of = lru_cache(maxsize=4)(make)

    def __getitem__(self, name: str) -> Outcome:
        return self._of(name)


def run_in_ranks(
    tasks: Iterable[tuple[Launcher, Task]], jobs: Mapping[str, Job], folder: Path
) -> Outcomes:
    """Run tasks that call `record`, for these jobs together; the outcomes of the jobs.

    A later call with the same folder waits for the first one, and reads its outcomes.
    """
    folder.mkdir(exist_ok=True)
    with wait_lock(folder / "lock", threading.Event()):
        if not (folder / "done").exists():
            for launcher, task in tasks:
                raise_for_failure(launcher.run(task, timeout=600, workdir=folder))
            (folder / "done").touch()

    def merged(name: str) -> Outcome:
        ranks = range(jobs[name].point.world_size)
        return _outcome(jobs[name], [_parts(folder, name, rank) for rank in ranks])

    return Outcomes(merged)


def record(jobs: Mapping[str, Job], folder: Path) -> None:
    """Run every job, one after the other, in this rank's group; each rank writes its own parts."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    axes = tuple(reversed(MESH_AXES))
    meshes: dict[tuple[int, ...], DeviceMesh] = {}  # each has groups, with threads of their own
    for name, job in jobs.items():
        shape = tuple(job.point.size(axis) for axis in axes)
        mesh = meshes.get(shape)
        if mesh is None:
            mesh = meshes[shape] = init_device_mesh("cpu", shape, mesh_dim_names=axes)
        double = Double(job, mesh)
        PROGRAMS[job.program](double, **job.arguments)
        # For thousands of small tensors, torch.save and torch.load take as long as the training.
        tensors = {key: part.tensor.contiguous() for key, part in double.parts.items()}
        save_file(tensors, folder / f"{name} {double.rank}.safetensors")
        places = [(key, part.coordinates, part.layout) for key, part in double.parts.items()]
        (folder / f"{name} {double.rank}.json").write_bytes(msgspec.json.encode(places))
    dist.destroy_process_group()


def _parts(folder: Path, name: str, rank: int) -> dict[str, Part]:
    """The parts that a rank has written, in the order in which it recorded them."""
    tensors = load_file(folder / f"{name} {rank}.safetensors")
    content = (folder / f"{name} {rank}.json").read_bytes()
    places = msgspec.json.decode(content, type=list[tuple[str, dict[str, int], Layout]])
    return {key: Part(rank, place, tensors[key], layout) for key, place, layout in places}


def _outcome(job: Job, parts_of_ranks: list[dict[str, Part]]) -> Outcome:
    keys = dict.fromkeys(key for parts in parts_of_ranks for key in parts)
    tensors, findings = {}, {}
    for key in keys:
        held = [parts[key] for parts in parts_of_ranks if key in parts]
        free = ("pp",) if key.split(" ")[2] == "-" else ("pp", "dp")
        merged = merge(held, job.point.sizes, free_axes=free)
        assert merged.tensor is not None, (key, merged.findings)
        tensors[key] = merged.tensor.double().contiguous().clone()
        if merged.findings:
            findings[key] = [finding.check for finding in merged.findings]
    return Outcome(tensors, findings)
