"""Explains a wrong tensor by the random numbers that ranks drew for it.

The ledger of random draws shows which ranks drew from one stream, and which from streams of their
own.  Called by `guards.leading`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator

import msgspec

from pytest_trainsafe.align.copies import copies, cut_over, neighbours
from pytest_trainsafe.core.code_files import relative
from pytest_trainsafe.core.finding import Finding, Pattern
from pytest_trainsafe.core.tensor_id import INITIAL, TensorId
from pytest_trainsafe.judges.compare.comparison import Comparison
from pytest_trainsafe.judges.compare.rung import RungTraces
from pytest_trainsafe.judges.mask_advice import by_example, mask_advice
from pytest_trainsafe.trace.reader import RankTrace, Trace
from pytest_trainsafe.trace.rng.events import MASKS, DrawEvent
from pytest_trainsafe.trace.rng.ledger import first_apart, initial_draws, source, sources

#: The patterns that say only how a tensor looks that was masked or drawn wrongly.
_LOOKS = frozenset({"other mask", "another shard", "misplaced rows", "permuted rows", "confined"})


def drawn(rung: RungTraces, comparison: Comparison, finding: Finding) -> Pattern | None:
    """The pattern of a wrong tensor whose values ranks drew from the wrong streams.

    None if no draw explains it, or if the comparison has found how the value follows from the right
    one.
    """
    where = finding.where
    if where is None or (finding.pattern is not None and finding.pattern.name not in _LOOKS):
        return None
    if where.kind == "param" and where.step == INITIAL:
        return _seeded_apart(rung) or _seeded_alike(rung, comparison)
    if where.kind == "activation":
        return _masked(rung, where)
    if finding.pattern is not None and finding.pattern.name == "other mask":
        return _of_the_backward(finding.pattern)
    return None


def _of_the_backward(looks: Pattern) -> Pattern:
    """Another mask in a gradient, where all activations agree: so ranks and seeds are right."""
    cause = (
        "the forward agrees, so the backward masks other elements than the forward did. A forward "
        "that is recomputed must draw what it drew the first time: from the same random state, and "
        "from a key that does not change between the two"
    )
    return msgspec.structs.replace(looks, cause=cause)


def _seeded_apart(rung: RungTraces) -> Pattern | None:
    """Ranks that hold copies of a parameter drew them from different streams."""
    trace = rung.candidate
    for axis, one, other in neighbours(trace):
        pair = first_apart(one, other)
        shared = () if pair is None else copies(trace, rung.reference, axis, one, other)
        id = next((i for i in shared if one.tensors[i].hash != other.tensors[i].hash), None)
        if pair is None or id is None:
            continue
        here, there = sources(*pair)
        text = (
            f"ranks {one.rank} and {other.rank} of {axis} begin with different copies of "
            f"{id.path}: at {relative(pair[0].line)}, rank {one.rank} draws from {here}, and rank "
            f"{other.rank} from {there}"
        )
        cause = (
            f"the ranks of {axis} are seeded differently before the model is made: seed them alike "
            "for the parameters they share, or give these equal values by "
            "ctx.initialize(model)"
        )
        short = f"ranks of {axis} drew their copies from different streams"
        return Pattern("seeded apart", text, axis, cause, short=short)
    return None


def _seeded_alike(rung: RungTraces, comparison: Comparison) -> Pattern | None:
    """Ranks that hold different parts of a wrong parameter drew the same numbers for them."""
    trace, mesh = rung.candidate, rung.candidate.sizes.mesh
    wrong = {f.where for f in comparison.findings if f.verdict == "fail"}
    for axis, one, other in neighbours(trace):
        draws = initial_draws(one)
        if not draws or not initial_draws(other) or first_apart(one, other) is not None:
            continue
        for id, event in one.tensors.items():
            if id.step != INITIAL:
                break
            theirs = other.tensors.get(id)
            parts = axis in cut_over(event, mesh) and id in wrong
            if not parts or theirs is None or theirs.hash != event.hash:
                continue
            if _draws_whole(rung, id, draws):
                return None  # each rank draws all values, and one takes another one's part
            text = (
                f"ranks {one.rank} and {other.rank} of {axis} hold the same values of {id.path}, "
                f"although they hold different parts of it: both drew from {source(draws[0])}, "
                f"first at {relative(draws[0].line)}"
            )
            cause = (
                f"the ranks of {axis} drew the same numbers for their parts: give each its part of "
                "the same weights by ctx.initialize(model) or by a checkpoint. Instead, seed the "
                f"ranks of {axis} differently for their parts if no test compares their weights "
                "with a single device's"
            )
            short = f"ranks of {axis} drew the same numbers for different parts"
            return Pattern("seeded alike", text, axis, cause, short=short)
    return None


def _draws_whole(rung: RungTraces, id: TensorId, draws: Iterable[DrawEvent]) -> bool:
    """Whether a rank draws as many values at once as the whole parameter has in the reference."""
    whole = rung.reference.holders(id)
    shapes = {draw.shape for draw in draws if draw.shape}
    return bool(whole) and math.prod(whole[0][1].shape) in {math.prod(each) for each in shapes}


def _masked(rung: RungTraces, where: TensorId) -> Pattern | None:
    """The masks of a module's output, which ranks drew from one stream or from their own."""
    trace = rung.candidate
    return _of_parts(rung, where) or _of_copies(trace, where) or _of_data(trace, where)


def _of_parts(rung: RungTraces, where: TensorId) -> Pattern | None:
    """Ranks drew the same mask for different parts of one tensor, or each one of its own."""
    trace = rung.candidate
    for axis, one, other in neighbours(trace):
        undeclared = ""
        if not _is_cut(axis, trace, where, one):
            undeclared = _undeclared(axis, rung, where, one)
            if not undeclared:
                continue
        here, there = (next(_masks(rank, where), None) for rank in (one, other))
        if here is None or there is None:
            continue
        if here.before == there.before:
            what = "different parts of this tensor"
            advice = mask_advice(axis, compared=True, parts=True)
            found = _same(axis, one, other, here, what, advice)
        else:
            found = _apart(axis, one, other, here, there, by_example(parts=True))
        return msgspec.structs.replace(found, cause=f"{undeclared}{found.cause}")
    return None


def _undeclared(axis: str, rung: RungTraces, where: TensorId, rank: RankTrace) -> str:
    """The advice to declare that ranks of an axis hold parts of a tensor; "" if they do not.

    They do if a rank has one of as many parts of one dimension as there are ranks along the axis.
    """
    role, whole = rung.candidate.sizes.mesh.role(axis), rung.reference.holders(where)
    part = rank.tensors.get(where)
    if role not in ("tp", "cp") or not whole or part is None:
        return ""
    due, held = whole[0][1].shape, part.shape
    apart = [dim for dim, sizes in enumerate(zip(due, held, strict=False)) if len({*sizes}) > 1]
    if len(due) != len(held) or len(apart) != 1:
        return ""
    dim = apart[0]
    if due[dim] != held[dim] * rung.candidate.sizes[axis]:
        return ""
    layout = f"{{{where.name}: {{{role}_dim: {dim}}}}}"
    return (
        f"each rank of {axis} holds a part of it, which no annotation says: add "
        f'"{where.module}": {layout} to the modules in the annotations. Then '
    )


def _of_copies(trace: Trace, where: TensorId) -> Pattern | None:
    """Ranks that hold copies of one tensor drew different masks for them."""
    members = {*trace.sizes.mesh.members("dp")}
    for axis, one, other in neighbours(trace):
        held = where in one.tensors and where in other.tensors
        if axis in members or not held or _is_cut(axis, trace, where, one, other):
            continue
        here, there = (next(_masks(rank, where), None) for rank in (one, other))
        if here is None or there is None or here.before == there.before:
            continue
        mine, theirs = sources(here, there)
        text = (
            f"ranks {one.rank} and {other.rank} of {axis} hold copies of this tensor and draw "
            f"different masks for them, at {relative(here.line)}: rank {one.rank} from {mine}, "
            f"and rank {other.rank} from {theirs}"
        )
        cause = (
            f"the copies of {axis} need one mask: draw it from one random state on all ranks of "
            f"{axis}"
        )
        short = f"ranks of {axis} drew different masks for copies"
        return Pattern("masks of copies", text, axis, cause, short=short)
    return None


def _of_data(trace: Trace, where: TensorId) -> Pattern | None:
    """Ranks drew the same masks for different data, or each from a stream of its own."""
    members = {*trace.sizes.mesh.members("dp")}
    for axis, one, other in neighbours(trace):
        if axis not in members:
            continue
        pairs = itertools.product(_in_step(one, where), _in_step(other, where))
        alike = next((h for h, t in pairs if h.before == t.before), None)
        if alike is not None:
            return _same(
                axis, one, other, alike, "different data", mask_advice(axis, compared=True)
            )
        here, there = (next(_in_step(rank, where), None) for rank in (one, other))
        if here is not None and there is not None:
            return _apart(axis, one, other, here, there, by_example())
    return None


def _is_cut(axis: str, trace: Trace, where: TensorId, *ranks: RankTrace) -> bool:
    """Whether a rank holds a part of a tensor that is cut over the ranks of an axis."""
    events = (rank.tensors.get(where) for rank in ranks)
    return any(axis in cut_over(event, trace.sizes.mesh) for event in events if event is not None)


def _same(
    axis: str, one: RankTrace, other: RankTrace, draw: DrawEvent, what: str, advice: str
) -> Pattern:
    text = (
        f"ranks {one.rank} and {other.rank} of {axis} drew the same numbers for {what}, at "
        f"{relative(draw.line)}, both from {source(draw)}"
    )
    short = f"ranks of {axis} drew the same mask for {what}"
    return Pattern("same draws", text, axis, advice, short=short)


def _apart(
    axis: str, one: RankTrace, other: RankTrace, here: DrawEvent, there: DrawEvent, advice: str
) -> Pattern:
    mine, theirs = sources(here, there)
    text = (
        f"each rank of {axis} draws its mask from a stream of its own, at {relative(here.line)}: "
        f"rank {one.rank} from {mine}, and rank {other.rank} from {theirs}. A single device has "
        "one stream, and so other masks"
    )
    return Pattern("own draws", text, axis, advice, short=f"each rank of {axis} draws its own mask")


def _masks(rank: RankTrace, where: TensorId) -> Iterator[DrawEvent]:
    """The masks that a rank draws in a module and micro-batch."""
    return (draw for draw in _in_step(rank, where) if draw.microbatch == where.microbatch)


def _in_step(rank: RankTrace, where: TensorId) -> Iterator[DrawEvent]:
    """The masks that a rank draws in a module and step."""
    return (
        draw
        for draw in rank.events_of(DrawEvent)
        if (draw.phase, draw.step, draw.module) == ("forward", where.step, where.module)
        and draw.operator in MASKS
        and math.prod(draw.shape) > 1
    )
