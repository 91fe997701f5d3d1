"""Runs an exam program without pytest-trainsafe's recorder, and says how far it is from one device.

`Plain` has the methods of a Context that the programs of this folder use, on plain
torch.distributed with gloo, and records losses, norms, buffers and parameters.  `distance` is the
largest difference of a Run at a Point from the Run on one device, relative to the tensor's largest
value.  It is how the exam itself is checked: a bug must be far away, and a healthy twin must not.
"""

from __future__ import annotations

import importlib
import os
import tempfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn

AXES = ("pp", "dp", "cp", "tp")


@dataclass
class Seen:
    """What one rank saw: values by a name that says what they are."""

    coordinates: dict[str, int]
    losses: dict[str, float] = field(default_factory=dict)
    norms: list[float] = field(default_factory=list)
    parameters: dict[str, Tensor] = field(default_factory=dict)
    buffers: dict[str, Tensor] = field(default_factory=dict)
    entries: dict[str, Any] = field(default_factory=dict)
    split: bool = False


class _Point(dict[str, Any]):
    def size(self, axis: str) -> int:
        return int(self.get(axis, 1))


class Plain:
    """A stand-in for a Context."""

    def __init__(self, point: Mapping[str, Any], rank: int, world: int) -> None:
        self.point, self.rank, self.world_size = _Point(point), rank, world
        self.device, self.dtype, self.seed = torch.device("cpu"), torch.float64, 0
        self.coordinates, left = {}, rank
        for axis in reversed(AXES):
            self.coordinates[axis] = left % self.point.size(axis)
            left //= self.point.size(axis)
        self.seen = Seen(dict(self.coordinates))
        self._groups: dict[str, Any] = {}
        self._step, self._microbatch = -1, 0
        self._model: Any = None

    def group(self, axis: str) -> Any:
        if axis not in self._groups:
            self._groups[axis] = self._made(axis)
        return self._groups[axis]

    def _made(self, axis: str) -> Any:
        grid = torch.arange(self.world_size).view([self.point.size(each) for each in AXES])
        if axis == "ep":
            # Neighbours along cp, then dp, with equal pp and tp.
            rows = grid.permute(0, 3, 1, 2).reshape(-1, self.point.size("ep"))
        else:
            rows = grid.movedim(AXES.index(axis), -1).reshape(-1, self.point.size(axis))
        mine = None
        for ranks in rows.tolist():
            group = dist.new_group(ranks)
            mine = group if self.rank in ranks else mine
        return mine

    def enter(self, values: Tensor) -> Tensor:
        return values

    def initialize(self, model: Any, annotations: Any = None) -> None:
        entries = (annotations or {}).get("parameters", {})
        with torch.no_grad():
            for name, parameter in named(model).items():
                entry = entry_of(entries, name)
                shape = logical_shape(parameter.shape, entry, self.point)
                generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
                whole = torch.randn(shape, generator=generator, dtype=torch.float64)
                whole = whole / max(shape[-1], 1) ** 0.5 if len(shape) > 1 else whole * 0.1
                if len(shape) == 1 and name.endswith("weight"):
                    whole = whole + 1
                parameter.copy_(part(whole, entry, self.point, self.coordinates))

    def watch(
        self, model: Any, optimizer: Any = None, annotations: Any = None, level: str = ""
    ) -> None:
        self._model = model
        self.seen.entries = dict(annotations or {})

    @contextmanager
    def step(self) -> Iterator[int]:
        self._step += 1
        yield self._step

    def microbatches(self, total: int, order: str = "contiguous") -> Sequence[int]:
        if order == "split":
            self.seen.split = True
            return range(total)
        share = total // self.point.size("dp")
        return range(self.coordinates["dp"] * share, (self.coordinates["dp"] + 1) * share)

    @contextmanager
    def microbatch(self, index: int) -> Iterator[int]:
        self._microbatch = index
        yield index

    def loss(self, value: Any, microbatch: int | None = None) -> None:
        index = self._microbatch if microbatch is None else microbatch
        self.seen.losses[f"loss {self._step}.{index}"] = float(torch.as_tensor(value).detach())

    def grad_norm(self, value: Any) -> None:
        self.seen.norms.append(float(torch.as_tensor(value).detach()))

    def before_clip(self, norm: Any, max_norm: float) -> None:
        pass

    def finish(self) -> Seen:
        self.seen.parameters = {n: p.detach().clone() for n, p in named(self._model).items()}
        self.seen.buffers = {n: b.detach().clone() for n, b in named(self._model, True).items()}
        return self.seen


def named(model: Any, buffers: bool = False) -> dict[str, Tensor]:
    """The parameters, or the buffers, of a module or of a dict of parts, by their names."""
    parts = model if isinstance(model, dict) else {"": model}
    found: dict[str, Tensor] = {}
    for prefix, module in parts.items():
        assert isinstance(module, nn.Module)
        dot = f"{prefix}." if prefix else ""
        pairs: Any = module.named_buffers() if buffers else module.named_parameters()
        found |= {dot + name: tensor for name, tensor in pairs}
    return found


def entry_of(entries: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The last entry whose pattern matches a name or a dotted suffix of it."""
    words = name.split(".")
    suffixes = [".".join(words[start:]) for start in range(len(words))]
    found: dict[str, Any] = {}
    for pattern, entry in entries.items():
        if any(fnmatchcase(suffix, pattern.replace("#", "*")) for suffix in suffixes):
            found = dict(entry)
    return found


def logical_shape(shape: Sequence[int], entry: Mapping[str, Any], point: _Point) -> list[int]:
    whole = list(shape)
    if "tp_dim" in entry:
        whole[entry["tp_dim"]] *= point.size("tp")
    return whole


def part(whole: Tensor, entry: Mapping[str, Any], point: _Point, at: Mapping[str, int]) -> Tensor:
    """The part of a logical tensor that a rank holds."""
    if "tp_dim" not in entry:
        return whole
    dim, size = entry["tp_dim"], point.size("tp")
    blocks = entry.get("blocks") or [whole.shape[dim]]
    cut = [block.chunk(size, dim)[at["tp"]] for block in whole.split(blocks, dim)]
    return torch.cat(cut, dim)


def _rank(rank: int, world: int, folder: str, spec: tuple[str, Any, Any]) -> None:
    module, point, several = spec
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world
    )
    program = importlib.import_module(module)
    seen = []
    for args in several:
        torch.manual_seed(0)
        ctx = Plain(point, rank, world)
        program.train(ctx, **args)
        seen.append(ctx.finish())
    torch.save(seen, os.path.join(folder, f"{rank}.pt"))
    dist.barrier()
    dist.destroy_process_group()


def run(
    module: str, point: Mapping[str, Any], several: Sequence[Mapping[str, Any]]
) -> list[list[Seen]]:
    """What each rank saw in the Runs with each of several arguments, one after the other."""
    world = 1
    for axis in AXES:
        world *= int(point.get(axis, 1))
    with tempfile.TemporaryDirectory() as folder:
        spec = (module, dict(point), [dict(args) for args in several])
        mp.start_processes(_rank, (world, folder, spec), nprocs=world, start_method="fork")
        files = [os.path.join(folder, f"{rank}.pt") for rank in range(world)]
        ranks = [torch.load(file, weights_only=False) for file in files]
    return [[rank[number] for rank in ranks] for number in range(len(several))]


def distance(reference: Seen, ranks: Sequence[Seen], point: Mapping[str, Any]) -> dict[str, float]:
    """The relative difference of each kind of value, and where it is greatest."""
    found: dict[str, float] = {}

    def compare(name: str, got: Tensor, expected: Tensor) -> None:
        if got.shape != expected.shape:
            found[name] = float("inf")
            return
        scale = max(float(expected.abs().max()), 1e-30)
        found[name] = max(found.get(name, 0.0), float((got - expected).abs().max()) / scale)

    sizes = _Point(point)
    for rank in ranks:
        entries = rank.entries.get("parameters", {})
        for name, got in rank.parameters.items():
            whole = reference.parameters[name]
            compare(name, got, part(whole, entry_of(entries, name), sizes, rank.coordinates))
        for name, got in rank.buffers.items():
            if name in reference.buffers:
                compare(name, got, reference.buffers[name])
        for index, norm in enumerate(rank.norms):
            compare(f"norm {index}", torch.tensor(norm), torch.tensor(reference.norms[index]))
    for name, expected in reference.losses.items():
        terms = [rank.losses[name] for rank in ranks if name in rank.losses]
        how = ranks[0].entries.get("loss", {})
        if how.get("partial"):
            # Ranks outside these axes report the same terms again.
            parts = 1
            for axis in how["partial"]:
                parts *= sizes.size(axis)
            terms = [sum(terms) * parts / len(terms)]
        elif how.get("mean") or ranks[0].split:
            terms = [sum(terms) / len(terms)]
        for value in terms:
            compare(name, torch.tensor(value), torch.tensor(expected))
    return found
