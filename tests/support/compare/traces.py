"""Writes synthetic traces of a small training at any Point, with faults planted in ranks.

No model runs: the logical values are drawn from their ids, and every rank records its part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import torch
import xxhash

from pytest_trainsafe.core.indices import extract
from pytest_trainsafe.core.layout import Layout, Partial, Shard
from pytest_trainsafe.core.point import Point
from pytest_trainsafe.core.rungs.table import rung_named
from pytest_trainsafe.core.tensor_id import INITIAL, TensorId
from pytest_trainsafe.judges.compare.rung import RungTraces
from pytest_trainsafe.trace.facts import Cast
from pytest_trainsafe.trace.reader import Trace
from pytest_trainsafe.trace.run_spec import RunSpec
from pytest_trainsafe.trace.schema import (
    InputEvent,
    ModuleEvent,
    StepEvent,
)
from pytest_trainsafe.trace.tensors.sketch import Sketcher
from pytest_trainsafe.trace.writer import RankWriter, manifest_of, write_manifest

SINGLE = Point.of()
MICROBATCHES = 4
STEPS = 2

#: Tokens, width, and width between the two layers.
TOKENS, HIDDEN, INNER = 12, 8, 16

#: Modules in the order of their forward, with the layouts of their outputs and parameters.
MODULES: dict[str, tuple[tuple[int, ...], Layout]] = {
    "norm": ((TOKENS, HIDDEN), ()),
    "fc1": ((TOKENS, INNER), (Shard(1, "tp"),)),
    "fc2": ((TOKENS, HIDDEN), ()),
}
PARAMETERS: dict[str, tuple[tuple[int, ...], Layout]] = {
    "norm.weight": ((HIDDEN,), ()),
    "fc1.weight": ((INNER, HIDDEN), (Shard(0, "tp"),)),
    "fc1.bias": ((INNER,), (Shard(0, "tp"),)),
    "fc2.weight": ((HIDDEN, INNER), (Shard(1, "tp"),)),
}


@dataclass(frozen=True)
class Record:
    """One logical tensor as a healthy program would record it."""

    id: TensorId
    tensor: torch.Tensor
    layout: Layout = ()


#: Changes what one rank records: given the record, the rank's coordinates and its part, it
#: returns what is recorded instead, or None for nothing.
Edit = Callable[[Record, dict[str, int], torch.Tensor], torch.Tensor | None]


def draw(name: str, shape: tuple[int, ...]) -> torch.Tensor:
    """Normal values that depend on the name alone."""
    generator = torch.Generator().manual_seed(xxhash.xxh3_64_intdigest(name.encode()) >> 1)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def training(
    dtype: str = "float64", epsilon: float = 0.0, seed: int = 0, steps: int = STEPS
) -> list[Record]:
    """The logical tensors in the order of dataflow, with relative noise of size `epsilon`.

    The parameters start from values that `dtype` holds exactly.
    """
    noise = torch.Generator().manual_seed(seed)

    def noisy(tensor: torch.Tensor) -> torch.Tensor:
        drawn = torch.rand(tensor.shape, generator=noise, dtype=torch.float64)
        return tensor * (1 + epsilon * (2 * drawn - 1))

    values = {
        name: draw(f"param {name}", shape).to(getattr(torch, dtype)).to(torch.float64)
        for name, (shape, _) in PARAMETERS.items()
    }
    records = [Record(parameter("param", name, INITIAL), v) for name, v in values.items()]
    for step in range(steps):
        for index in range(MICROBATCHES):
            records += _microbatch(step, index, noisy)
        for name, (shape, _) in PARAMETERS.items():
            grads = (draw(f"grad {step} {i} {name}", shape) for i in range(MICROBATCHES))
            total = sum(grads, torch.zeros(()))
            records.append(Record(parameter("main_grad", name, step), noisy(total)))
        for name, (shape, _) in PARAMETERS.items():
            values[name] = values[name] - 0.01 * noisy(draw(f"update {step} {name}", shape))
            records.append(Record(parameter("param", name, step), values[name]))
            moment = noisy(draw(f"moment {step} {name}", shape))
            state = parameter("optimizer_state", f"{name}.exp_avg", step)
            records.append(Record(state, moment))
    return [Record(r.id, r.tensor, _layout(r.id)) for r in records]


def _microbatch(
    step: int, index: int, noisy: Callable[[torch.Tensor], torch.Tensor]
) -> Iterator[Record]:
    for name, (shape, _) in MODULES.items():
        value = noisy(draw(f"activation {step} {index} {name}", shape))
        yield Record(TensorId(step, index, "activation", name, "output"), value)
    yield Record(TensorId(step, index, "loss", "", "loss"), noisy(draw(f"loss {step} {index}", ())))
    for name, (shape, _) in reversed(MODULES.items()):
        value = noisy(draw(f"gradient {step} {index} {name}", shape))
        yield Record(TensorId(step, index, "activation_grad", name, "output"), value)
    for name, (shape, _) in PARAMETERS.items():
        value = noisy(draw(f"grad {step} {index} {name}", shape))
        yield Record(parameter("param_grad", name, step, index), value)


def parameter(kind: str, name: str, step: int, microbatch: int | None = None) -> TensorId:
    """The id of a parameter's tensor of this kind: its value, a gradient or a state."""
    module, _, leaf = name.partition(".")
    return TensorId(step, microbatch, kind, module, leaf)  # type: ignore[arg-type]


def _layout(id: TensorId) -> Layout:
    if id.kind in ("activation", "activation_grad"):
        return (Shard(0, "cp"), *MODULES[id.module][1])
    if id.kind == "loss":
        return (Partial("cp"),)
    layout = PARAMETERS[".".join(id.path.split(".")[:2])][1]
    return (*layout, Partial("cp")) if id.kind == "param_grad" else layout


def healthy(record: Record, at: dict[str, int], part: torch.Tensor) -> torch.Tensor:
    """The edit that plants nothing."""
    return part


def write(
    path: Path,
    records: Sequence[Record],
    point: Point = SINGLE,
    dtype: str = "float64",
    edit: Edit = healthy,
    notes: Iterable[msgspec.Struct] = (),
    inputs: Callable[[dict[str, int], int], object] | None = lambda at, index: (index, at["cp"]),
    rng: Callable[[int], tuple[str, str]] = lambda step: (f"{step}", f"{step + 1}"),
    program: str = "model.train",
    narrowed: str = "",
    sketched: bool = False,
) -> Trace:
    """Write what every rank of `point` records, and open it.

    `inputs` gives the input data of a rank's micro-batch, of which the hash is recorded; None
    records no inputs.  `rng` gives the generator's states before and after a step.  `narrowed` is
    the note of a program that casts, and `sketched` records sketches instead of values.
    """
    manifest = manifest_of(
        RunSpec(program=program, axes=point.values, mesh=point.mesh.declared, dtype=dtype), "cpu"
    )
    write_manifest(path, manifest)
    share = MICROBATCHES // point.size("dp")
    for rank in range(point.world_size):
        at = point.coordinates(rank)
        writer = RankWriter(path, rank, Sketcher(at, point.sizes) if sketched else None)
        for event in (*_opening(notes), *_casts(narrowed)):
            writer.add(event)
        steps = sorted({r.id.step for r in records} - {INITIAL})
        for step in (INITIAL, *steps):
            for record in (r for r in records if r.id.step == step):
                mine = record.id.microbatch is None or record.id.microbatch // share == at["dp"]
                if mine:
                    _add(writer, record, at, point, dtype, edit)
            if step == INITIAL:
                continue
            for index in range(at["dp"] * share, (at["dp"] + 1) * share):
                if inputs is None:
                    break
                digest = xxhash.xxh3_128_hexdigest(repr((step, inputs(at, index))).encode())
                writer.add(InputEvent(step, index, (digest,)))
            before, after = rng(step)
            writer.add(StepEvent(step, share, before, after, True, 0.0))
        writer.close()
    return Trace.open(path)


def _casts(narrowed: str) -> Iterator[Cast]:
    dtype, _, at = narrowed.partition(" ")
    if dtype:
        yield msgspec.convert({"type": "cast", "dtype": dtype, "at": at}, Cast)


def _opening(notes: Iterable[msgspec.Struct]) -> Iterator[msgspec.Struct]:
    for name in ("", *MODULES):
        cls = name.capitalize() or "Model"
        yield ModuleEvent(name, cls, f"{Path(__file__).parent}/model.py:{len(name)}")
    yield from notes


def _add(
    writer: RankWriter,
    record: Record,
    at: dict[str, int],
    point: Point,
    dtype: str,
    edit: Edit,
) -> None:
    tensor = record.tensor
    if tensor.is_floating_point():
        # Losses are float32 in every recipe.
        tensor = tensor.to(
            torch.float32 if _half(dtype) and record.id.kind == "loss" else getattr(torch, dtype)
        )
    part = edit(record, at, extract(tensor, record.layout, at, point.sizes).clone())
    if part is not None:
        writer.add_tensor(record.id, part, record.layout, "attribute")


def _half(dtype: str) -> bool:
    return dtype in ("bfloat16", "float16")


def _noise(dtype: str) -> float:
    """The rounding noise of a healthy run; in half precision, storing a value rounds it as well."""
    return rung_named(dtype).epsilon / (8 if _half(dtype) else 1)


class Bench:
    """Pairs of traces in one directory: the reference is written once for every dtype."""

    def __init__(self, directory: Path, sketched: bool = False) -> None:
        self.directory = directory
        self.sketched = sketched
        self.count = 0
        self.measured: dict[str, tuple[Trace, Trace, Trace | None]] = {}

    def path(self) -> Path:
        self.count += 1
        return self.directory / str(self.count)

    def measures(self, dtype: str) -> tuple[Trace, Trace, Trace | None]:
        """The reference, its perturbed run, and its float64 shadow."""
        if dtype not in self.measured:
            epsilon = rung_named(dtype).epsilon
            self.measured[dtype] = (
                self._write(training(dtype, _noise(dtype), 1), SINGLE, dtype),
                self._write(training(dtype, epsilon, 2), SINGLE, dtype),
                self._write(training(dtype), SINGLE, "float64") if dtype != "float64" else None,
            )
        return self.measured[dtype]

    def rung(
        self,
        point: Point,
        edit: Edit = healthy,
        dtype: str = "float32",
        records: Sequence[Record] | None = None,
        **options: object,
    ) -> RungTraces:
        """A rung whose candidate is healthy except for `edit`."""
        reference, perturbed, shadow = self.measures(dtype)
        if records is None:
            records = training(dtype, _noise(dtype), 3)
        candidate = self._write(records, point, dtype, edit, **options)
        return RungTraces(dtype, candidate, reference, perturbed, shadow)

    def _write(
        self, records: Sequence[Record], point: Point, dtype: str, *args: Edit, **options: object
    ) -> Trace:
        options["sketched"] = self.sketched
        return write(self.path(), records, point, dtype, *args, **options)  # type: ignore[arg-type]


def only(kind: str, path: str, change: Edit, step: int | None = None) -> Edit:
    """An edit of the tensors of one kind at one path, in one step or all."""

    def edit(record: Record, at: dict[str, int], part: torch.Tensor) -> torch.Tensor | None:
        id = record.id
        if id.kind == kind and id.path == path and step in (None, id.step):
            return change(record, at, part)
        return part

    return edit
