"""Rules of Points that the reference programs share.  Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields

from pytest_trainsafe.core.point import Point
from pytest_trainsafe.reference_models.config import VOCABULARY, TransformerConfig
from pytest_trainsafe.reference_models.parallel.pipeline.schedules import TORCHS
from pytest_trainsafe.sweep.relations import Setting
from pytest_trainsafe.sweep.validity import Rule

#: What is no parallelism: the values of each axis that change nothing about how a model is trained.
_TRIVIAL: dict[str, tuple[object, ...]] = {
    **dict.fromkeys(("tp", "cp", "pp", "vpp", "ep"), (1,)),
    "sp": (False,),
    "compile": (False,),
    "recompute": (False, "none"),
}


def only_data_parallel(*others: str) -> Rule:
    """A rule: of the ways to train in parallel there are dp and ZeRO-1, and the axes `others`."""

    *first, last = ("dp", "zero", *others)

    def rule(point: Point, _arguments: Mapping[str, object]) -> str | None:
        for axis, value in point:
            if value not in _TRIVIAL.get(axis, (value,)) and axis not in others:
                known = f"{', '.join(first)} and {last}"
                return f"this program has no {axis}; its parallel axes are {known}"
        if int(point.get("zero", 0)) > 1:
            return f"this program has no zero={point.get('zero', 0)}; it has zero=1"
        return None

    return rule


def compiled_alone(point: Point, arguments: Mapping[str, object]) -> str | None:
    """A compiled model is one graph, or breaks at its own collectives; nothing else is mixed in."""
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
    return f"this program has no compile=True together with {odd}" if odd else None


def sizes_of(config: type[TransformerConfig]) -> Rule:
    """A rule: the sizes among a program's arguments make a model of this configuration."""
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
    """Why a relation that changes what is in a micro-batch does not hold: FP8's first scales."""
    if setting.arguments.get("fp8"):
        return "with fp8, the scales of the first step depend on what is in a micro-batch"
    return None


def known_vocabulary(_point: Point, arguments: Mapping[str, object]) -> str | None:
    """Tokens are bytes, or several bytes are one token."""
    size = int(str(arguments.get("vocabulary", VOCABULARY)))
    if not 1 <= size <= VOCABULARY:
        return f"vocabulary={size} is not from 1 to {VOCABULARY}, as tokens are bytes"
    return None


def vocabulary_over_tp(point: Point, arguments: Mapping[str, object]) -> str | None:
    """The vocabulary is cut over tp."""
    size = int(str(arguments.get("vocabulary", VOCABULARY)))
    if size % point.size("tp"):
        return f"the vocabulary of {size} is not divisible by tp={point.size('tp')}"
    return known_vocabulary(point, arguments)


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
    """The interleaved schedules take pp micro-batches at a time."""
    pp, total = point.size("pp"), int(str(arguments["microbatches"]))
    schedule, each = arguments.get("schedule"), total // point.size("dp")
    if int(point.get("vpp", 1)) == 1 or schedule == "gpipe":
        return None
    if schedule == "torch-gpipe":
        return "torch's GPipe has one chunk a rank, and vpp has several"
    if each % pp:
        return f"microbatches/dp={each} is not divisible by pp={pp}"
    return None


def torch_schedules_fit(point: Point, arguments: Mapping[str, object]) -> str | None:
    """What the schedules of torch.distributed.pipelining need beside `microbatches_interleave`."""
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
            "uninitialized tensors to learn its shapes, and they would enter the scales of FP8; "
            "use schedule='1f1b' or 'gpipe'"
        )
    each = int(str(arguments["microbatches"])) // point.size("dp")
    if schedule == "torch-1f1b" and each < pp:
        return f"microbatches/dp={each} is less than pp={pp}, and schedule={schedule!r} needs pp"
    if schedule == "torch-zero-bubble" and each % max(1, each // pp):
        rounds = each // pp
        return (
            f"microbatches/dp={each} cannot be divided into {rounds} equal rounds, as "
            f"schedule={schedule!r} needs at pp={pp}; use a multiple of pp"
        )
    return None
