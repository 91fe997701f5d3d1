"""Finds a factor by which all gradients of a step are wrong, which wrong clipping causes.

Clipping multiplies every gradient by the same number, which depends on all gradients: one wrong
gradient, or a wrong norm, makes all others wrong too.  Called by `judges.compare.ladder.ladder` and
`judges.compare.localize.blame`, after a comparison failed at main gradients.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence

import msgspec
import torch

from pytest_trainsafe.align.logical import free_axes, logical_tensor, parts_of
from pytest_trainsafe.align.merge import Merged, merge
from pytest_trainsafe.align.sketched import is_whole
from pytest_trainsafe.core.finding import Finding
from pytest_trainsafe.core.layout import Partial
from pytest_trainsafe.core.rungs.table import rung_named
from pytest_trainsafe.core.tensor_id import TensorId
from pytest_trainsafe.judges.compare.comparison import Comparison
from pytest_trainsafe.judges.compare.explain.evidence import explain_tensor
from pytest_trainsafe.judges.compare.explain.part_ratio import (
    SIGNIFICANT,
    Ratio,
    Ratios,
    ratio,
    ratios_of,
    reference_of,
)
from pytest_trainsafe.judges.compare.factor import Clips, Factor, factor_pattern
from pytest_trainsafe.judges.compare.rung import RungTraces
from pytest_trainsafe.judges.compare.tensors.errors import norm
from pytest_trainsafe.judges.compare.tensors.tensor import TensorJudgement

#: How many gradients must have the same factor before it counts as common.
LEAST = 2

#: How many gradients of the reference are checked for clipping, and how many wrong gradients are
#: explained a second time.
FEW = 4

#: The relative error of numbers that are reported once, such as norms.
BLUR = 1e-5
#: The chance at which a clipping factor may be taken for a division by an integer.
RARE = 0.01


def common_factor(rung: RungTraces, comparison: Comparison) -> Factor | None:
    """The factor by which the main gradients of the failing step are wrong; None if there is none.

    Clipping multiplies every gradient.  So the result is None too if a correct main gradient of the
    step is so large that the factor would be visible in it.  The factor may differ between ranks,
    as it does if each rank computes its own norm.
    """
    wrong = _wrong_gradients(comparison)
    if len(wrong) < LEAST:
        return None
    step = wrong[0].step
    ratios: Ratios = {}
    for id in wrong:
        found = ratios_of(rung, id)
        if found is not None:
            ratios[id] = found
    norms = _norms(rung, step)
    by_norm = {rank: ours and theirs / ours for rank, (ours, theirs) in norms.items()}
    factors = shared_factors(ratios, by_norm)
    if factors is None:
        return None
    scaled = tuple(id for id, parts in ratios.items() if _fit(parts, factors))
    scaled = tuple(id for id in wrong if id in scaled or _sums_scaled_terms(rung, id, factors))
    if len(scaled) < LEAST or not _others_allow(rung, comparison, step, factors):
        return None
    apart = tuple(id for id in wrong if id not in scaled)
    right = bool(comparison.compared["grad_norm"]) and not comparison.wrong["grad_norm"]
    clips = _clipping(rung, scaled, factors, norms, right)
    unsummed = _unsummed(rung, norms) if clips == "norms" else ""
    alone = _clipped_alone(rung, step, factors) if clips and not unsummed else ""
    return Factor(step, factors, scaled, apart, clips, unsummed, alone)


def with_factor(rung: RungTraces, comparison: Comparison) -> Comparison:
    """A copy of the comparison with the common factor of its main gradients and reordered findings.

    If the factor is one of clipping, the findings that cause it come first.  Otherwise a wrong
    gradient norm is moved behind the wrong gradients from which it is computed; programs may report
    it earlier.  If clipping takes a factor out of the gradients, or the reference alone clips, only
    the norm shows by what they are scaled.
    """
    factor = None if rung.numbers.exact else common_factor(rung, comparison)
    wrong_norm = factor is not None and factor.clips == "wrong norm"
    if factor and wrong_norm and (_is_taken_out(factor) or _is_scaled_before(rung, factor)):
        return _led_by_norm(comparison, factor.step)
    if factor is None or not factor.clips:
        return dataclasses.replace(_norm_after_gradients(comparison), factor=factor)
    return led_by_cause(rung, comparison, factor)


def _norm_after_gradients(comparison: Comparison) -> Comparison:
    """A copy of the comparison in which a wrong norm follows the wrong gradients of its step."""
    wrong = {*_wrong_gradients(comparison)}
    places = [n for n, f in enumerate(comparison.findings) if f.where in wrong]
    if not places:
        return comparison
    step = next(iter(wrong)).step
    before, after = comparison.findings[: places[-1] + 1], comparison.findings[places[-1] + 1 :]
    norms = [f for f in before if _is_norm(f, step)]
    kept = [f for f in before if not _is_norm(f, step)]
    return dataclasses.replace(comparison, findings=[*kept, *norms, *after])


def _is_taken_out(factor: Factor) -> bool:
    """Whether gradients of a wrong norm are right after clipping, but for what it adds to the norm.

    Then all gradients have the norm's factor before they are clipped.  If the norm alone had it,
    clipping by this norm would put the factor into every gradient.
    """
    return all(abs(each - 1) <= 10 * BLUR for each in factor.factors.values())


def _is_scaled_before(rung: RungTraces, factor: Factor) -> bool:
    """Whether the gradients have the norm's factor before clipping, which only the reference does.

    The candidate's clipped gradients are then those that the reference clips, times this factor.
    """
    clip = _clip_of_reference(rung, factor.scaled)
    norms = _norms(rung, factor.step)
    return bool(clip and norms) and all(
        rank in norms and _near(each * clip * norms[rank][1], norms[rank][0])
        for rank, each in factor.factors.items()
    )


def _led_by_norm(comparison: Comparison, step: int) -> Comparison:
    """A copy of a comparison in which the wrong norm of a step comes before its gradients."""
    first = [f for f in comparison.findings if f.verdict == "fail" and _is_norm(f, step)]
    rest = [f for f in comparison.findings if f.verdict != "fail" or not _is_norm(f, step)]
    wrong = {*_wrong_gradients(comparison)}
    place = next(number for number, f in enumerate(rest) if f.where in wrong)
    return dataclasses.replace(comparison, findings=[*rest[:place], *first, *rest[place:]])


def led_by_cause(rung: RungTraces, comparison: Comparison, factor: Factor) -> Comparison:
    """A copy of a comparison in which the findings that cause a clipping factor come first.

    These are the gradients that the factor does not explain; their patterns are found anew after
    dividing the gradients by the factor.  If there are none, the gradient norm comes first, or else
    the first of the scaled gradients.
    """
    findings = [_explained(rung, f, factor) for f in comparison.findings]
    failing = [f for f in findings if f.verdict == "fail"]
    after = [f for f in failing if f.where in factor.scaled]
    if factor.apart:
        first = [f for f in failing if f.where in factor.apart]
        after += [f for f in failing if _is_norm(f, factor.step)]
    else:
        first = [f for f in failing if _is_norm(f, factor.step)]
        if not first:
            first, after = after[:1], after[1:]
        pattern = factor_pattern(factor)
        replaced = {id(f): msgspec.structs.replace(f, pattern=pattern) for f in first}
        findings = [replaced.get(id(f), f) for f in findings]
        first = list(replaced.values())
    moved = {id(f) for f in (*first, *after)}
    place = min(i for i, f in enumerate(findings) if id(f) in moved)
    before = [f for f in findings[:place] if id(f) not in moved]
    rest = [f for f in findings[place:] if id(f) not in moved]
    return dataclasses.replace(comparison, findings=[*before, *first, *after, *rest], factor=factor)


def shared_factors(ratios: Ratios, likely: Mapping[int, float]) -> dict[int, float] | None:
    """By rank, the most frequent factor between the candidate's gradients and the reference's.

    `ratios` has the factor of each gradient on each rank.  `likely` may have an expected factor for
    a rank: a factor close to it takes precedence over the most frequent one.  None if the gradients
    on some rank have no factor in common, or if all factors are 1.
    """
    factors: dict[int, float] = {}
    off = False
    for rank in sorted({rank for parts in ratios.values() for rank in parts}):
        known = [p[rank] for p in ratios.values() if rank in p and p[rank].certain]
        wanted = likely.get(rank)
        ranked = sorted(known, key=lambda one: (_support(one, known, wanted), -one.blur))
        best = ranked[-1] if ranked else None
        if best is None or sum(_alike(best, other) for other in known) < LEAST:
            return None
        factors[rank] = best.factor
        off = off or abs(best.factor - 1) > SIGNIFICANT * best.blur
    return factors if off else None


def _support(one: Ratio, known: Sequence[Ratio], likely: float | None) -> tuple[bool, int]:
    alike = sum(_alike(one, other) for other in known)
    near = likely is not None and abs(one.factor - likely) <= BLUR * abs(likely) + one.blur
    return near and alike >= LEAST, alike


def _alike(one: Ratio, other: Ratio) -> bool:
    return abs(one.factor - other.factor) <= (one.blur + other.blur) * max(1.0, abs(one.factor))


def _fit(parts: Mapping[int, Ratio], factors: Mapping[int, float]) -> bool:
    return all(part.fits(factors[rank]) for rank, part in parts.items())


def _sums_scaled_terms(rung: RungTraces, id: TensorId, factors: Mapping[int, float]) -> bool:
    """Whether a gradient is right once each rank's term of it is divided by the rank's factor.

    The ranks' terms of one gradient have different factors if each rank clips by its own norm.
    """
    found = reference_of(rung, id)
    if found is None or not is_whole(rung.candidate, id):
        return False
    if not any(
        isinstance(p, Partial) for part in parts_of(rung.candidate, id) for p in part.layout
    ):
        return False
    merged = _divided(rung, id, found[0], factors).whole
    return merged is not None and norm((merged - found[0]).numpy()) <= found[1]


def _divided(
    rung: RungTraces, id: TensorId, reference: torch.Tensor, factors: Mapping[int, float]
) -> Merged:
    """A gradient of which each rank's part is divided by the rank's factor."""
    parts = [
        msgspec.structs.replace(part, tensor=part.tensor.double() / (factors[part.rank] or 1.0))
        for part in parts_of(rung.candidate, id)
        if part.rank in factors
    ]
    sizes, shape = rung.candidate.sizes, tuple(reference.shape)
    return merge(parts, sizes, shape=shape, free_axes=free_axes(id), where=id, numbers=rung.numbers)


def _wrong_gradients(comparison: Comparison) -> list[TensorId]:
    """The wrong main gradients of the failing step, in dataflow order."""
    wrong = [
        f.where
        for f in comparison.findings
        if f.verdict == "fail" and f.where is not None and f.where.kind == "main_grad"
    ]
    return list(dict.fromkeys(id for id in wrong if id.step == wrong[0].step))


def _others_allow(
    rung: RungTraces, comparison: Comparison, step: int, factors: Mapping[int, float]
) -> bool:
    """Whether all gradients of `step` that passed are too small to show the factor.

    Main gradients, which the optimizer uses, are considered.  `factors` has the factor of each
    rank.
    """
    wrong = {*_wrong_gradients(comparison)}
    for id in rung.reference.ids():
        if id.kind != "main_grad" or id.step != step or id in wrong:
            continue
        found = reference_of(rung, id)
        if found is None or not rung.candidate.holders(id):
            continue
        reference, allowed = found
        for part in rung.candidate.holders(id):
            off = abs(factors.get(part[0].rank, 1.0) - 1) * norm(reference.numpy())
            if off > 2 * allowed * math.sqrt(rung.candidate.manifest.world_size):
                return False
    return True


def _norms(rung: RungTraces, step: int) -> dict[int, tuple[float, float]]:
    """By rank, the gradient norms that the candidate's rank and the reference report."""
    id = TensorId(step, None, "grad_norm", "", "grad_norm")
    expected = logical_tensor(rung.reference, id).whole if rung.reference.holders(id) else None
    if expected is None or expected.numel() != 1 or not is_whole(rung.candidate, id):
        return {}
    theirs = float(expected)
    found = {p.rank: float(p.tensor) for p in parts_of(rung.candidate, id) if p.tensor.numel() == 1}
    return {rank: (ours, theirs) for rank, ours in found.items() if math.isfinite(ours)}


def _unsummed(rung: RungTraces, norms: Mapping[int, tuple[float, float]]) -> str:
    """The axes over which the ranks' norms are those of parts: "dp", or "" if there are none.

    The squares of the norms of the ranks along them add up to the square of the reference's norm.
    """
    ranks = {rank.rank: rank.coordinates for rank in rung.candidate.ranks}
    sized = [axis for axis, size in rung.candidate.sizes.items() if size > 1]
    if ranks.keys() != norms.keys() or all(_near(*pair) for pair in norms.values()):
        return ""
    for count in range(1, len(sized) + 1):
        for axes in itertools.combinations(sized, count):
            squares: dict[tuple[int, ...], float] = {}
            for rank, at in ranks.items():
                others = tuple(at[axis] for axis in sized if axis not in axes)
                squares[others] = squares.get(others, 0.0) + norms[rank][0] ** 2
            theirs = next(iter(norms.values()))[1]
            if all(_near(math.sqrt(total), theirs) for total in squares.values()):
                return " and ".join(axes)
    return ""


def _clipped_alone(rung: RungTraces, step: int, factors: Mapping[int, float]) -> str:
    """The axes along which each rank divides its gradients by their own norm: "tp", or "" if none.

    The clipped gradients of every rank then have the norm that all of the reference's together
    have.  The axes are those along which ranks have different factors.
    """
    every, own = 0.0, dict.fromkeys(factors, 0.0)
    for id in rung.reference.ids():
        if (id.kind, id.step) != ("main_grad", step):
            continue
        reference = logical_tensor(rung.reference, id).whole
        if reference is None or not is_whole(rung.candidate, id):
            return ""
        every += norm(reference.double().numpy()) ** 2
        for part in parts_of(rung.candidate, id):
            own[part.rank] = own.get(part.rank, 0.0) + norm(part.tensor.double().numpy()) ** 2
    if not all(_near(math.sqrt(squares), math.sqrt(every)) for squares in own.values()):
        return ""
    places = {rank.rank: rank.coordinates for rank in rung.candidate.ranks}
    apart: set[str] = set()
    for one, other in itertools.combinations(factors, 2):
        between = [axis for axis, at in places[one].items() if places[other][axis] != at]
        if len(between) == 1 and not _near(factors[one], factors[other]):
            apart.update(between)
    return " and ".join(axis for axis in rung.candidate.sizes if axis in apart)


def _near(one: float, other: float) -> bool:
    """Whether two norms are equal up to rounding."""
    return abs(one - other) <= 10 * BLUR * max(abs(one), abs(other))


def _clipping(
    rung: RungTraces,
    scaled: Sequence[TensorId],
    factors: Mapping[int, float],
    norms: Mapping[int, tuple[float, float]],
    right: bool,
) -> Clips:
    """The evidence that clipping applies the factor, as described at `Factor.clips`.

    `right` says that the norms were compared and agree.
    """
    if not norms:
        return "reference" if reference_clips(rung, scaled) else ""
    if right:
        return "right norm" if reference_clips(rung, scaled) else ""

    pairs = [(factors[rank], *norms[rank]) for rank in factors if rank in norms]
    if all(_near(factor * ours, theirs) for factor, ours, theirs in pairs):
        return "norms"
    if all(_near(ours, factor * theirs) for factor, ours, theirs in pairs):
        return ""  # the norm is that of gradients that were already scaled
    if not reference_clips(rung, scaled):
        return ""  # no evidence of clipping
    return "right norm" if all(_near(o, t) for _, o, t in pairs) else "wrong norm"


def reference_clips(rung: RungTraces, gradients: Iterable[TensorId]) -> bool:
    """Whether the reference clips its gradients; False if the values that show it are missing."""
    return _clip_of_reference(rung, gradients) > 0


def _clip_of_reference(rung: RungTraces, gradients: Iterable[TensorId]) -> float:
    """The factor by which the reference clips its gradients; 0 if it does not, or is not known to.

    `gradients` are main gradients of one step, of which the first `FEW` are tested.  The reference
    clips if each of them is the sum of the micro-batches' gradients times a factor below 1 that no
    division by an integer explains, as a mean over micro-batches or tokens is.
    """
    blur = SIGNIFICANT * rung_named(rung.dtype).epsilon
    clip = 0.0
    for id in itertools.islice(gradients, FEW):
        terms = [
            logical_tensor(rung.reference, other).whole
            for other in rung.reference.ids()
            if (other.kind, other.step, other.path) == ("param_grad", id.step, id.path)
        ]
        due = logical_tensor(rung.reference, id).whole
        if not terms or due is None or any(term is None for term in terms):
            return 0.0
        total = torch.stack([term.double() for term in terms if term is not None]).sum(0)
        found = ratio(due.double(), total, 0.05 * norm(due.numpy()))
        if not found.certain or found.factor > 1 - blur or _divides(found.factor, blur):
            return 0.0
        clip = clip or found.factor
    return clip


def _divides(factor: float, blur: float) -> bool:
    """Whether a factor, known up to `blur` times itself, is 1 over an integer and not by chance."""
    count = round(1 / factor) if factor > 0 else 0
    by_chance = 2 * blur * count
    return count > 0 and by_chance < RARE and abs(factor * count - 1) <= blur


def _is_norm(finding: Finding, step: int) -> bool:
    where = finding.where
    return where is not None and (where.kind, where.step) == ("grad_norm", step)


#: Begins the text of a pattern of gradients that were divided by the factor.
_WITHOUT = "with the clipping factor taken out, "


def _explained(rung: RungTraces, finding: Finding, factor: Factor) -> Finding:
    """Returns the finding, with a pattern that is found after dividing the gradient by the factor.

    Only the findings on the first `FEW` gradients that the factor does not explain get a pattern.
    All other findings are returned unchanged.
    """
    if finding.where not in factor.apart[:FEW] or finding.error is None:
        return finding
    found = reference_of(rung, finding.where)
    if found is None:
        return finding
    reference, allowed = found
    where, merged = finding.where, _divided(rung, finding.where, reference, factor.factors)
    if merged.whole is None:
        return finding
    judged = TensorJudgement("norm", "", 0.0, 0.0, 0.0, rounding=allowed)
    pattern = explain_tensor(rung, where, merged, reference, judged)
    if pattern is not None:
        pattern = msgspec.structs.replace(pattern, text=f"{_WITHOUT}{pattern.text}")
    return msgspec.structs.replace(finding, pattern=pattern)
