"""Compares the dropout masks of ranks.

Over tp and cp, replicas of a tensor need equal masks, and its shards different ones. Over dp,
different micro-batches need different masks.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import torch

from pytest_trainsafe.core.finding import Finding, Verdict
from pytest_trainsafe.core.tensor_id import TensorId
from pytest_trainsafe.core.usage import name_ranks
from pytest_trainsafe.judges.mask_advice import mask_advice
from pytest_trainsafe.judges.replay.rng.draws import (
    Draw,
    Draws,
    describe_draw,
    masked,
    stream_of,
    when,
)
from pytest_trainsafe.judges.replay.rng.finding import violation
from pytest_trainsafe.judges.replay.rng.regions import Regions, shares_microbatches
from pytest_trainsafe.trace.schema import TensorEvent

#: Two ranks hold the same tensor if at least so many values that neither of them masks are equal.
_LEAST = 8

#: Whether a rule (a check) does not apply to a draw, because a test ignores it or expects
#: something else there.
Excused = Callable[[str, Draw], bool]


def cut_axes(
    draws: Draws, regions: Regions, axis: str, excused: Excused, unknown: set[str]
) -> Iterator[Finding]:
    """Checks that ranks of `axis` draw equal masks for replicas and different ones for shards.

    `axis` is a role, tp or cp. Yields at most one finding for each of these two rules, at the
    first draw that breaks it. Modules where it is not known how the tensor is sharded are added to
    `unknown`.
    """
    found: dict[str, tuple[Draw, Draw]] = {}
    undeclared: set[str] = set()
    for group in draws.groups(axis):
        sites = [{d.site: (d, regions.of(d)) for d in draws.masks(rank)} for rank in group]
        for (one, here), (other, there) in itertools.combinations(
            zip(group, sites, strict=True), 2
        ):
            apart = draws.apart(one, other)
            for site, (left, region) in here.items():
                if site not in there:
                    continue
                right, its_region = there[site]
                equal = left.event.before == right.event.before
                declared = region is not None
                if region is None and not equal and _masks_replicas(draws, left, right):
                    region = its_region = frozenset()
                if region is None:
                    unknown.add(site[2])
                    continue
                # The two may hold replicas although the tensor is sharded over another axis of
                # the same role.
                shards = bool(region & apart)
                check = f"rng:{axis}_{'same' if shards else 'different'}_dropout"
                if equal != shards or its_region != region:
                    continue
                if excused(check, left) or (not equal and _equal_outputs(left, right)):
                    continue
                if not _is_first(found.get(check), left):
                    found[check] = left, right
                    undeclared = undeclared - {check} if declared else undeclared | {check}
    for check, (left, right) in found.items():
        verdict: Verdict = "inconclusive" if check in undeclared else "fail"
        yield _cut_finding(check, draws.name(axis), left, right, regions.compared, verdict)


def _cut_finding(
    check: str, axis: str, left: Draw, right: Draw, compared: bool, verdict: Verdict
) -> Finding:
    ranks = name_ranks([left.rank.rank, right.rank.rank])
    place = f"in {when(left)}, {describe_draw(left)}"
    if "same" in check:
        message = (
            f"{ranks} of {axis} draw the same {masked(left)} for different shards of a tensor "
            f"over {axis}: {place}, both from {stream_of(left)}"
        )
        cause = (
            f"the ranks of {axis} use the same random stream, but each needs its own: "
            f"{mask_advice(axis, compared=compared, parts=True)}"
        )
    else:
        message = (
            f"{ranks} of {axis} draw different {masked(left)} for a tensor that both hold as "
            f"replicas: {place}; rank {left.rank.rank} draws from {stream_of(left)}, rank "
            f"{right.rank.rank} from {stream_of(right)}"
        )
        cause = (
            f"the ranks of {axis} were seeded differently, or one of them drew more numbers "
            "before: copies of an activation need the same mask"
        )
    if verdict == "inconclusive":
        place = left.event.module or "*"
        cause += (
            f"; if each rank masks its copy for a purpose of its own, declare it with "
            f'expect_rng("{place}", different="{axis}")'
        )
    # Ranks of tp are seeded alike for what they hold whole, so the draw of shards is at fault.
    seeds = None if check == "rng:tp_same_dropout" else right
    return violation(check, message, cause, left, axis, verdict, seeds)


def data_parallel(
    draws: Draws, regions: Regions, excused: Excused, repeated: set[str]
) -> Iterator[Finding]:
    """Checks that ranks of dp draw different dropout for different data.

    Yields at most one finding. Draws that the reference itself repeats between micro-batches
    are not a fault of the candidate; their modules or lines are added to `repeated`. The finding is
    inconclusive if the program marks whole steps only, and it is not known whether each rank draws
    for its own data, as it should, or for the data of all ranks, of which it then uses its part.
    """
    check = "rng:dp_same_dropout"
    shared = shares_microbatches(draws)
    found: dict[Verdict, tuple[Draw, Draw]] = {}
    for group in draws.groups("dp"):
        masks = [(rank, draws.masks(rank, functions=True)) for rank in group]
        for (one, here), (other, there) in itertools.combinations(masks, 2):
            apart = draws.apart(one, other)
            known = {(d.event.step, d.event.generator, d.event.before): d for d in there}
            for left in here:
                right = known.get((left.event.step, left.event.generator, left.event.before))
                if right is None or excused(check, left):
                    continue
                verdict: Verdict = "fail"
                if shared:
                    is_cut = regions.is_cut(left, apart)
                    others = _other_inputs(left, right) if regions.whole_steps else None
                    if is_cut is None and others:
                        verdict = "inconclusive"
                    elif not is_cut or others is False:
                        continue
                if (regions.whole_steps or not shared) and _repeats(draws, regions, left, right):
                    repeated.add(left.place)
                elif not _is_first(found.get(verdict), left):
                    found[verdict] = left, right
    if found:
        worst: Verdict = "fail" if "fail" in found else "inconclusive"
        yield _same_dropout(draws, *found[worst], worst, regions.compared)


def _same_dropout(
    draws: Draws, left: Draw, right: Draw, verdict: Verdict, compared: bool
) -> Finding:
    axis = draws.name("dp")
    ranks = name_ranks([left.rank.rank, right.rank.rank])
    message = (
        f"{ranks} of {axis} draw the same {masked(left)} for different data: rank "
        f"{left.rank.rank} in {when(left)}, {describe_draw(left)}; rank {right.rank.rank} in "
        f"{when(right)}, {describe_draw(right)}; both from {stream_of(left)}"
    )
    cause = (
        f"all ranks of {axis} seed the generator with the same number: "
        f"{mask_advice(axis, compared=compared)}"
    )
    if verdict == "inconclusive":
        message = message.replace("for different data", "in a step with different data", 1) + (
            '. The program marks whole steps only (ctx.watch(level="step")), so it is not known '
            "whether each rank draws for its own data, or for the data of all ranks; a reference "
            "that trains on the same samples in each step shows this"
        )
        place = left.event.module or "*"
        cause = (
            f"if each rank draws for its own data, {cause}; otherwise, declare it with "
            f'expect_rng("{place}", same="dp")'
        )
    return violation("rng:dp_same_dropout", message, cause, left, axis, verdict, right)


def _other_inputs(left: Draw, right: Draw) -> bool | None:
    """Whether the model is given other data on the two ranks in the step of the draws.

    None if this is unknown, or if only some of the data are other ones.
    """
    one, other = (
        {event.hashes for event in draw.rank.inputs if event.step == draw.event.step}
        for draw in (left, right)
    )
    if not one or not other:
        return None
    return False if one == other else True if not one & other else None


def _repeats(draws: Draws, regions: Regions, left: Draw, right: Draw) -> bool:
    """Whether the reference also draws equal numbers for the micro-batches of `left` and `right`.

    This is decided on the candidate if the reference did not record both draws, or if they are at
    different places of the model.  Then returns whether, in the step of `left`, the rank of `left`
    draws in several micro-batches from the same generator state, and so the same numbers.  In a
    program that marks whole steps only, the draws of a module in a step take the place of those in
    several micro-batches.
    """
    if regions.whole_steps:
        return regions.repeats_in_step(left)
    one, other = regions.whole(left), regions.whole(right)
    if one is not None and other is not None and left.site[2:] == right.site[2:]:
        return one.before == other.before
    microbatches = {
        draw.event.microbatch
        for draw in draws.masks(left.rank.rank, functions=True)
        if draw.event.before == left.event.before and draw.event.step == left.event.step
    }
    return len(microbatches) > 1


def _equal_outputs(left: Draw, right: Draw) -> bool:
    """Whether both ranks recorded equal outputs of the module in spite of different draws."""
    one, other = (_output(draw) for draw in (left, right))
    return one is not None and other is not None and one.hash == other.hash


def _masks_replicas(draws: Draws, left: Draw, right: Draw) -> bool:
    """Whether two ranks mask equal values differently.

    Then the module's outputs have the same values wherever neither rank's mask has a zero.
    """
    kept: list[torch.Tensor] = []
    for draw in (left, right):
        output = _output(draw)
        if output is None or not output.key or output.shape != draw.event.shape:
            return False
        kept.append(draws.trace.load(draw.rank.rank, output))
    one, other = kept
    both = (one != 0) & (other != 0)
    return int(both.sum()) >= _LEAST and torch.equal(one[both], other[both])


def _output(draw: Draw) -> TensorEvent | None:
    """The output of the module of a draw."""
    step, microbatch, module, _ = draw.site
    return draw.rank.tensors.get(TensorId(step, microbatch, "activation", module, "output"))


def _is_first(found: tuple[Draw, Draw] | None, left: Draw) -> bool:
    """Whether the pair that was found before is earlier than `left`, or as early."""
    if found is None:
        return False
    here, first = left, found[0]
    return (first.event.step, first.order) <= (here.event.step, here.order)
