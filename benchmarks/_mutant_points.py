"""The Points at which mutants of the parallel models are judged, and the lines that each runs.

The models are small, since every mutant runs at several Points. Some have awkward sizes: a
vocabulary whose tokens all occur, or a number of layers that the stages cannot divide evenly.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from _mutant_packages import MUTATED, Packages

from pytest_trainsafe.config.settings import Settings
from pytest_trainsafe.core.point import Point
from pytest_trainsafe.runs.session import Session
from pytest_trainsafe.sweep.case import Case
from pytest_trainsafe.sweep.program import resolve

_SMALL: dict[str, Any] = {
    "layers": 2,
    "hidden": 8,
    "heads": 2,
    "seq_len": 8,
    "vocabulary": 16,
    "batch_size": 2,
    "microbatches": 4,
    "learning_rate": 0.01,
}
_LLAMA = {**_SMALL, "heads": 4, "hidden": 16, "kv_heads": 2, "ffn": 12}
_MOE = {**_LLAMA, "ffn": 8, "balance": 0.1}
_CNN = {"channels": 4, "blocks": 1, "size": 6, "batch_size": 2, "microbatches": 4}
_NARROW = {"q_rank": 6, "kv_rank": 4, "rope_dim": 2, "ffn": 12, "expert_ffn": 8}
_DEEPSEEK = {**_SMALL, **_NARROW}
_SIZES = {"gpt": _SMALL, "llama": _LLAMA, "moe": _MOE, "deepseek": _DEEPSEEK, "cnn": _CNN}

#: In smaller models with FP8, the rounding of FP8 hides everything in bfloat16.
_FP8 = {"fp8": True, "hidden": 32, "heads": 4, "layers": 1, "seq_len": 16}


@dataclass(frozen=True, eq=False)
class Place:
    """A program at a Point, with arguments.

    `accept` names the guards that find the unchanged program inconclusive here.
    """

    program: str
    axes: Mapping[str, Any]
    more: Mapping[str, Any] = field(default_factory=dict)
    accept: tuple[str, ...] = ()

    @property
    def arguments(self) -> dict[str, Any]:
        return {**_SIZES[self.program], **self.more}

    @property
    def point(self) -> Point:
        return Point.of(dict(self.axes))

    @property
    def given(self) -> dict[str, Any]:
        """The axes and the additional arguments of this place."""
        return {**self.axes, **self.more}

    @property
    def words(self) -> set[str]:
        """The program, the axes and the additional arguments of this place, as texts."""
        return {self.program, *(f"{name}={value}" for name, value in self.given.items())}

    def __str__(self) -> str:
        return " ".join(
            [self.program, str(self.point), *(f"{k}={v}" for k, v in self.more.items())]
        )

    def case(
        self, packages: Packages, settings: Settings, package: Path | None, dtype: str
    ) -> Case:
        """The Case of the clean package, or of a mutated one."""
        program = (
            packages.program_of(package, self.program)
            if package is not None
            else packages.program(self.program)
        )
        arguments, settings = self.arguments, settings._replace(accept=self.accept)
        return Case(self.point.replace(dtype=dtype), program, settings, arguments, arguments)


#: Sorted by the number of ranks; with equal numbers, plainer programs come first.
PLACES = (
    Place("gpt", {"recompute": "selective"}),
    Place("gpt", {"recompute": "full"}, {"recompute_num_layers": 2, "layers": 3}),
    Place("gpt", {"recompute": "full"}, {"fp8": True, "vocabulary": 1}, accept=("gradients",)),
    Place("gpt", {"dp": 2}, {"clip": 0.5}),
    Place("gpt", {"dp": 2}, {"clip": 1000.0}),  # never acts
    Place("gpt", {"dp": 2}, {"seq_len": 1}),
    Place("gpt", {"tp": 2}),
    Place("gpt", {"tp": 2}, {"learning_rate": 30.0}, accept=("sensitive:param_grad",)),
    Place("gpt", {"tp": 2, "sp": True}, {"clip": 0.5}),
    Place("gpt", {"cp": 2}),
    Place("gpt", {"cp": 2}, {"cp_method": "ring"}),
    Place("gpt", {"pp": 2}, {"layers": 5, "clip": 0.5}),
    Place("gpt", {"pp": 2}, {"layers": 3, "tied": True, "schedule": "gpipe", "clip": 0.5}),
    Place("gpt", {"pp": 2, "vpp": 2}, {"layers": 4}),
    Place("gpt", {"pp": 2, "vpp": 2}, {"layers": 4, "schedule": "gpipe"}),
    Place("gpt", {"pp": 2}, {"schedule": "torch-1f1b"}),
    Place("gpt", {"pp": 2, "vpp": 2}, {"layers": 4, "schedule": "torch-1f1b"}),
    Place("gpt", {"pp": 2}, {"schedule": "torch-zero-bubble"}, accept=("narrowed",)),
    Place("gpt", {"dp": 2}, {"bucket": 300, "overlap_grad_reduce": True}),
    Place("gpt", {"dp": 2, "zero": 1}, {"bucket": 300, "clip": 0.5}),
    Place("gpt", {"dp": 2, "zero": 1}, {"overlap_param_gather": True, "overlap_grad_reduce": True}),
    Place("gpt", {"tp": 2, "sp": True}, {"tp_overlap": True}),
    Place("gpt", {"tp": 2}, {"tp_overlap": True}),
    Place("gpt", {"cp": 2, "zero": 1}, {"bucket": 300}),
    Place("gpt", {"cp": 2, "compile": True}, {"compile_backend": "aot_eager"}),
    Place("gpt", {"tp": 2}, _FP8),
    Place("gpt", {"tp": 2, "sp": True}, _FP8),
    Place("gpt", {"tp": 2, "sp": True}, {**_FP8, "tp_overlap": True}),
    Place("gpt", {"cp": 2, "recompute": "full"}, _FP8),
    Place("gpt", {"dp": 2}, _FP8),
    Place("llama", {"tp": 2, "sp": True}),
    Place("llama", {"cp": 2}, {"cp_method": "ring"}),
    Place("llama", {"pp": 2}),
    Place("moe", {"tp": 2}),
    Place("moe", {"dp": 2, "ep": 2}, {"clip": 0.5}),
    Place("moe", {"cp": 2, "ep": 2}, {"capacity_factor": 0.75}),
    Place("moe", {"dp": 2, "ep": 2, "zero": 1}, {"clip": 0.5}),
    Place("moe", {"tp": 2, "sp": True}, {"capacity_factor": 0.75}),
    Place("deepseek", {"tp": 2}),
    Place("deepseek", {"tp": 2, "sp": True}, {"clip": 0.5}),
    Place("deepseek", {"cp": 2, "ep": 2}),
    Place("deepseek", {"pp": 2}, {"clip": 0.5}),
    Place("cnn", {"dp": 2, "zero": 1}, {"clip": 0.5}),
    Place("gpt", {"pp": 3}, {"layers": 3, "tied": True}),
    Place("gpt", {"cp": 3}, {"cp_method": "ring", "seq_len": 18}),
    Place("gpt", {"dp": 2, "cp": 2}, {"bucket": 300, "clip": 0.5}),
    Place("gpt", {"dp": 2, "cp": 2, "zero": 1}, {"bucket": 300}),
    Place("gpt", {"dp": 2, "pp": 2, "zero": 1}, {"tied": True, "bucket": 300, "clip": 0.5}),
    Place("gpt", {"dp": 2, "tp": 2, "sp": True, "zero": 1}, {"clip": 0.5}),
    Place("gpt", {"tp": 2, "cp": 2}, {"clip": 0.5}),
    Place("gpt", {"tp": 2, "cp": 2, "compile": True}, {"compile_backend": "aot_eager"}),
    Place("moe", {"dp": 2, "tp": 2}, {"clip": 0.5}),
    Place("moe", {"dp": 2, "tp": 2, "sp": True, "ep": 2}, {"clip": 0.5}),
    Place("moe", {"dp": 2, "cp": 2, "ep": 2}, {"capacity_factor": 0.75, "clip": 0.5}),
)

#: The lines of each file, by its path relative to the mutated folder.
Lines = dict[str, set[int]]


@dataclass(frozen=True)
class Covered:
    """The lines of the mutated folder that the candidate and the reference of a place run."""

    candidate: Lines
    reference: Lines

    def runs(self, file: str, lines: range) -> bool:
        return bool(self.candidate.get(file, set()) & set(lines))

    def shares(self, file: str, lines: range) -> bool:
        """Whether the reference also runs any of the lines."""
        return bool(self.reference.get(file, set()) & set(lines))

    def only_shares(self, file: str, lines: range) -> bool:
        """Whether the reference runs any of the lines, and the candidate none."""
        return self.shares(file, lines) and not self.runs(file, lines)


def covered(
    session: Session, packages: Packages, memory: Path, places: Sequence[Place] = PLACES
) -> dict[Place, Covered]:
    """The lines that each of the places runs, measured once for each state of the sources.

    They are kept in the file `memory`.
    """
    known: dict[str, Any] = json.loads(memory.read_text()) if memory.exists() else {}
    state = _state(packages)
    if known.get("state") != state:
        known = {"state": state}
    for place in places:
        if str(place) not in known:
            known[str(place)] = [
                _measured(session, packages, place, place.point),
                _measured(session, packages, place, Point.of({})),
            ]
            memory.parent.mkdir(parents=True, exist_ok=True)
            memory.write_text(json.dumps(known))
    return {
        place: Covered(*({f: set(n) for f, n in each.items()} for each in known[str(place)]))
        for place in places
    }


def _measured(
    session: Session, packages: Packages, place: Place, point: Point
) -> dict[str, list[int]]:
    folder = packages.clean / MUTATED
    lines = session.folders.new("lines") / "rank"
    arguments = {
        "program": packages.program(place.program).path,
        "folder": str(folder),
        "lines": str(lines),
        "arguments": place.arguments,
    }
    tracer = resolve("_mutant_lines:train")
    case = Case(point.replace(dtype="float64"), tracer, session.settings, arguments, arguments)
    candidate = session.candidate(case)
    candidate.at("float64")
    session.discard(candidate)
    found: dict[str, set[int]] = {}
    for file in lines.parent.glob("rank.*"):
        for name, numbers in json.loads(file.read_text()).items():
            found.setdefault(name, set()).update(numbers)
    return {name: sorted(numbers) for name, numbers in found.items()}


def _state(packages: Packages) -> str:
    digest = hashlib.sha256()
    for file in sorted(packages.clean.rglob("*.py")):
        digest.update(file.read_bytes())
    return digest.hexdigest()
