"""All valid combinations of axes and techniques of the reference models, up to a world size."""

from __future__ import annotations

import importlib
import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pytest_trainsafe.core.point import Point
from pytest_trainsafe.sweep.program import resolve
from pytest_trainsafe.sweep.validity import invalid

MAX_RANKS = 8

_DEGREES = (1, 2, 4, 8)
_MESH = ("dp", "tp", "cp", "pp")
_MODEL: dict[str, Any] = {"hidden": 16, "heads": 8, "seq_len": 16, "vocabulary": 32}
#: Small sizes at which all degrees are possible.
_SIZES: Mapping[str, dict[str, Any]] = {
    "gpt": _MODEL,
    "llama": {**_MODEL, "kv_heads": 8, "ffn": 24},
    "moe": {**_MODEL, "kv_heads": 8, "ffn": 24, "experts": 8, "layers": 1},
    "deepseek": {**_MODEL, "ffn": 24, "expert_ffn": 8, "experts": 8, "rope_dim": 4},
    "cnn": {"channels": 4, "blocks": 1, "size": 6, "batch_size": 2},
    "lstm": {"hidden": 8, "seq_len": 8, "batch_size": 2, "layers": 1},
}
#: The values of all other axes, and of the arguments; programs have some of the arguments.
_OTHER: Mapping[str, tuple[Any, ...]] = {
    "sp": (False, True),
    "vpp": (1, 2),
    "ep": (1, 2, 4, 8),
    "zero": (0, 1),
    "recompute": ("none", "selective", "full"),
}
_ARGUMENTS: Mapping[str, tuple[Any, ...]] = {
    "accumulation": (1, 2),
    "clip": (0.0, 0.5),
    "cp_method": ("all_gather", "ring"),
    "fp8": (False, True),
}


@dataclass(frozen=True)
class Combination:
    """A reference model at a Point, with its arguments."""

    program: str
    point: Point
    arguments: Mapping[str, Any]


def combinations(program: str) -> Iterator[Combination]:
    """The valid combinations of more than one rank or with a technique, each once."""
    resolved = resolve(
        importlib.import_module(f"pytest_trainsafe.reference_models.{program}").train
    )
    known = resolved.complete({})
    tried = {name: values for name, values in _ARGUMENTS.items() if name in known}
    tried["accumulation"] = _ARGUMENTS["accumulation"]
    for mesh in itertools.product(_DEGREES, repeat=len(_MESH)):
        if math.prod(mesh) > MAX_RANKS:
            continue
        degrees = dict(zip(_MESH, mesh, strict=True))
        for row in itertools.product(*_OTHER.values()):
            axes = degrees | dict(zip(_OTHER, row, strict=True))
            named = {name: value for name, value in axes.items() if value != _first(name)}
            point = Point.of(named)
            for given in itertools.product(*tried.values()):
                arguments = dict(zip(tried, given, strict=True))
                if degrees["cp"] == 1 and arguments.get("cp_method") == "ring":
                    continue  # equal to the other method
                each = arguments.pop("accumulation") * max(1, degrees["pp"])
                layers = (
                    {"layers": max(2, degrees["pp"] * axes["vpp"])} if "schedule" in known else {}
                )
                whole = {**_SIZES[program], **layers, "microbatches": degrees["dp"] * each}
                whole |= {**arguments, "steps": 2}
                if invalid(point, resolved.complete(whole), resolved.rules, MAX_RANKS) is None:
                    yield Combination(program, point, whole)


def _first(axis: str) -> Any:
    return _OTHER[axis][0] if axis in _OTHER else 1


PROGRAMS = tuple(_SIZES)
