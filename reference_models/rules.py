"""Rules, shared by the reference programs, that say which Points and arguments are valid.

A rule returns the reason why they are invalid, or None if they are valid.  Does not import torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields

from pytest_trainsafe.core.point import Point
from pytest_trainsafe.judges.metamorphic.relations import Setting
from pytest_trainsafe.reference_models.config import VOCABULARY, TransformerConfig
from pytest_trainsafe.reference_models.parallel.pipeline.schedules import TORCHS
from pytest_trainsafe.sweep.validity import Rule

#: By axis, the values with which the axis has no effect on how a model is trained.
_TRIVIAL: dict[str, tuple[object, ...]] = {
    **dict.fromkeys(("tp", "cp", "pp", "vpp", "ep"), (1,)),
    "sp": (False,),
    "zero": (0,),
    "compile": (False,),
    "recompute": (False, "none"),
}


def only_axes(*axes: str) -> Rule:
    """Return the rule of a program that supports only the given axes, and no ZeRO stage above 1."""

    *first, last = axes
    known = f"{', '.join(first)} and {last}"

    def rule(point: Point, _arguments: Mapping[str, object]) -> str | None:
        for axis, value in point:
            if value not in _TRIVIAL.get(axis, (value,)) and axis not in axes:
                return f"this program has no {axis}; its axes are {known}"
        if int(point.get("zero", 0)) > 1:
            return f"this program has no zero={point.get('zero', 0)}; use zero=1"
        return None

    return rule


def only_data_parallel(*others: str) -> Rule:
    """Return the rule of a program that supports only dp, ZeRO-1 and the axes `others`."""
    return only_axes("dp", "zero", *others)


def compiled_alone(point: Point, arguments: Mapping[str, object]) -> str | None:
    """Return why compile=True is not supported with the other settings, or None.

    A compiled model is one graph, or several that end at its own collectives; it cannot contain
    code of a pipeline, recomputation, FP8 or overlapped gathers.
    """
    if not point.get("compile", False):
        return None
    recompute = point.get("recompute", "none")
    others = {
        f"pp={point.size('pp')}": point.size("pp") > 1,
        f"recompute={recompute}": recompute not in (False, "none"),
        "fp8=True": bool(arguments.get("fp8")),
        "overlap_param_gather=True": bool(arguments.get("overlap_param_gather")),
    }
    odd = next((name for name, on in others.items() if on), None)
    return f"this program does not support compile=True together with {odd}" if odd else None


def sizes_of(config: type[TransformerConfig]) -> Rule:
    """Return the rule that the sizes among a program's arguments are valid for a configuration."""
    names = [field.name for field in fields(config)]

    def rule(_point: Point, arguments: Mapping[str, object]) -> str | None:
        given = {name: arguments[name] for name in names if name in arguments}
        try:
            config(**given)  # type: ignore[arg-type]  # the program's parameters have these types
        except ValueError as error:
            return str(error)
        return None

    return rule


def fp8_scales_follow_micro_batches(setting: Setting) -> str | None:
    """Return why a relation that changes the content of micro-batches does not hold, or None."""
    if setting.arguments.get("fp8"):
        return "with fp8, the scales of the first step depend on the content of a micro-batch"
    return None


def known_vocabulary(_point: Point, arguments: Mapping[str, object]) -> str | None:
    """Return why the vocabulary has an invalid size, or None."""
    size = int(str(arguments.get("vocabulary", VOCABULARY)))
    if not 1 <= size <= VOCABULARY:
        return f"vocabulary={size} is not from 1 to {VOCABULARY}, the number of bytes"
    return None


def vocabulary_over_tp(point: Point, arguments: Mapping[str, object]) -> str | None:
    """Return why the vocabulary cannot be divided evenly over tp, or None."""
    size = int(str(arguments.get("vocabulary", VOCABULARY)))
    if size % point.size("tp"):
        return f"the vocabulary of {size} is not divisible by tp={point.size('tp')}"
    return known_vocabulary(point, arguments)


def sequence_in_chunks(point: Point, arguments: Mapping[str, object]) -> str | None:
    """Return why the sequence cannot be divided evenly, or None.

    With cp > 1 it is divided in zigzag order into 2 * cp chunks.  With sp, the part of each cp rank
    is divided over tp.
    """
    length, cp, tp = int(str(arguments["seq_len"])), point.size("cp"), point.size("tp")
    if cp > 1 and length % (2 * cp):
        return f"seq_len={length} is not divisible by 2*cp={2 * cp}"
    if point.get("sp", False) and length // cp % tp:
        return f"seq_len/cp={length // cp} is not divisible by tp={tp}, which sp requires"
    return None


def layers_for_stages(point: Point, arguments: Mapping[str, object]) -> str | None:
    """Return why the layers are too few for the pipeline stages, or None."""
    layers = int(str(arguments["layers"]))
    stages = point.size("pp") * int(point.get("vpp", 1))
    return f"layers={layers} is less than pp*vpp={stages}" if layers < stages else None


def microbatches_interleave(point: Point, arguments: Mapping[str, object]) -> str | None:
    """Return why vpp > 1 is impossible with this schedule or number of micro-batches, or None.

    Interleaved schedules run pp micro-batches at a time.
    """
    pp, total = point.size("pp"), int(str(arguments["microbatches"]))
    schedule, each = arguments.get("schedule"), total // point.size("dp")
    if int(point.get("vpp", 1)) == 1 or schedule == "gpipe":
        return None
    if schedule == "torch-gpipe":
        return "schedule='torch-gpipe' has one chunk per rank, but vpp > 1 gives a rank several"
    if each % pp:
        return f"microbatches/dp={each} is not divisible by pp={pp}"
    return None


def torch_schedules_fit(point: Point, arguments: Mapping[str, object]) -> str | None:
    """Return why a schedule of torch.distributed.pipelining is impossible, or None.

    `microbatches_interleave` checks further requirements.
    """
    pp, schedule = point.size("pp"), str(arguments.get("schedule", ""))
    if pp == 1 or schedule not in TORCHS:
        return None
    recompute = point.get("recompute", "none")
    if recompute not in (False, "none"):
        return (
            f"recompute={recompute} is not possible with schedule={schedule!r}, which "
            "differentiates with torch.autograd.grad; use schedule='1f1b' or 'gpipe'"
        )
    if arguments.get("fp8"):
        return (
            f"fp8=True is not possible with schedule={schedule!r}, which first runs each stage on "
            "uninitialized tensors to learn its shapes, so that their values would affect the "
            "scales of FP8; use schedule='1f1b' or 'gpipe'"
        )
    each = int(str(arguments["microbatches"])) // point.size("dp")
    if schedule == "torch-1f1b" and each < pp:
        return (
            f"microbatches/dp={each} is less than pp={pp}; schedule={schedule!r} needs at least "
            f"{pp} micro-batches"
        )
    if schedule == "torch-zero-bubble" and each % max(1, each // pp):
        rounds = each // pp
        return (
            f"microbatches/dp={each} cannot be divided into {rounds} equal rounds, which "
            f"schedule={schedule!r} needs at pp={pp}; use a multiple of {pp}"
        )
    return None
