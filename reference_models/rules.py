"""Rules of Points that the reference programs share.  Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping

from pytest_trainsafe.reference_models.config import VOCABULARY
from pytest_trainsafe.sweep.point import Point

#: What is no parallelism: the values of each axis that change nothing about how a model is trained.
_TRIVIAL: dict[str, tuple[object, ...]] = {
    **dict.fromkeys(("tp", "cp", "pp", "vpp", "ep"), (1,)),
    "sp": (False,),
    "compile": (False,),
    "recompute": (False, "none"),
}


def only_data_parallel(point: Point, _arguments: Mapping[str, object]) -> str | None:
    """Of the ways to train in parallel there are dp and ZeRO-1."""
    for axis, value in point:
        if value not in _TRIVIAL.get(axis, (value,)):
            return f"this program has no {axis}; its parallel axes are dp and zero"
    if int(point.get("zero", 0)) > 1:
        return f"this program has no zero={point.get('zero', 0)}; it has zero=1"
    return None


def vocabulary_over_tp(point: Point, _arguments: Mapping[str, object]) -> str | None:
    """The vocabulary is cut over tp."""
    if VOCABULARY % point.size("tp"):
        return f"the vocabulary of {VOCABULARY} is not divisible by tp={point.size('tp')}"
    return None


def sequence_in_chunks(point: Point, arguments: Mapping[str, object]) -> str | None:
    """Zig-zag cuts the sequence in 2 * cp chunks; sp cuts what a cp rank holds over tp."""
    length, cp, tp = int(str(arguments["seq_len"])), point.size("cp"), point.size("tp")
    if cp > 1 and length % (2 * cp):
        return f"seq_len={length} is not divisible by 2*cp={2 * cp}"
    if point.get("sp", False) and length // cp % tp:
        return f"seq_len/cp={length // cp} is not divisible by tp={tp}, as sp needs"
    return None


def layers_for_stages(point: Point, arguments: Mapping[str, object]) -> str | None:
    """Every stage has a layer."""
    layers = int(str(arguments["layers"]))
    stages = point.size("pp") * int(point.get("vpp", 1))
    return f"layers={layers} are fewer than pp*vpp={stages}" if layers < stages else None


def microbatches_interleave(point: Point, arguments: Mapping[str, object]) -> str | None:
    """The interleaved schedule takes pp micro-batches at a time."""
    pp, total = point.size("pp"), int(str(arguments["microbatches"]))
    schedule = arguments.get("schedule")
    if int(point.get("vpp", 1)) == 1 or schedule == "gpipe":
        return None
    if schedule == "torch-gpipe":
        return "torch's GPipe has one chunk a rank, and vpp has several"
    if total // point.size("dp") % pp:
        return f"microbatches/dp={total // point.size('dp')} is not divisible by pp={pp}"
    return None
