"""Guards against checks that could not have failed.  Each gives `inconclusive`, by name.

A green test must mean that something was compared that a bug would have changed.  The guards
and the real suites that were green without them: DESIGN in docs/design.md, "Vacuity".
"""

from __future__ import annotations

from collections.abc import Iterator

from pytest_trainsafe.align.logical import logical_tensor
from pytest_trainsafe.compare.judge import Comparison
from pytest_trainsafe.compare.rung import Rung
from pytest_trainsafe.finding import Finding
from pytest_trainsafe.trace.reader import RankTrace, Trace

#: A tensor whose allowance is as large as itself cannot fail; more than this share of a kind
#: makes the kind's check vacuous.
MOST_INSENSITIVE = 0.5


def guard(rung: Rung, comparison: Comparison) -> list[Finding]:
    """Every guard that finds the comparison empty of meaning."""
    checks = (
        _compared(comparison),
        _gradients(rung),
        _moved(comparison),
        _inputs(rung.candidate),
        _in_effect(rung.candidate),
        _dropout(rung.candidate),
        _sensitive(comparison),
        _measured(rung),
    )
    return [
        Finding(
            verdict="inconclusive", judge="vacuity", check=check, message=text, dtype=rung.dtype
        )
        for findings in checks
        for check, text in findings
    ]


Guard = Iterator[tuple[str, str]]


def _compared(comparison: Comparison) -> Guard:
    if not comparison.compared and not comparison.failed:
        yield "compared", "no tensor was compared: reference and candidate have none in common"
    elif not comparison.compared["main_grad"] and not comparison.compared["param_grad"]:
        yield "gradients-compared", "no gradient was compared; a one-step loss shows few bugs"


def _gradients(rung: Rung) -> Guard:
    seen = False
    for id in rung.reference.ids():
        if id.kind != "main_grad":
            continue
        seen = True
        tensor = logical_tensor(rung.reference, id).tensor
        if tensor is not None and float(tensor.abs().max() if tensor.numel() else 0) > 0:
            return
    if seen:
        yield "gradients", "every gradient of the reference is zero: nothing was trained"


def _moved(comparison: Comparison) -> Guard:
    judged = comparison.compared["update"]
    if judged and not comparison.moved:
        yield "moved", "no parameter of the reference moved in any step"


def _inputs(candidate: Trace) -> Guard:
    """dp ranks must see different data, tp ranks the same."""
    by_dp: dict[tuple[tuple[str, int], ...], dict[tuple[str, ...], int]] = {}
    by_tp: dict[tuple[tuple[str, int], ...], tuple[str, ...]] = {}
    for rank in candidate.ranks:
        hashes = _all_inputs(rank)
        if not hashes:
            continue
        where = tuple(item for item in rank.coordinates.items() if item[0] != "dp")
        twin = by_dp.setdefault(where, {}).setdefault(hashes, rank.rank)
        if twin != rank.rank:
            yield (
                "dp-inputs",
                f"ranks {twin} and {rank.rank} of dp saw the same data: a missing average over "
                "dp would not show",
            )
            return
        where = tuple(item for item in rank.coordinates.items() if item[0] != "tp")
        if by_tp.setdefault(where, hashes) != hashes:
            yield "tp-inputs", f"rank {rank.rank} saw other data than its neighbours of tp"
            return


def _all_inputs(rank: RankTrace) -> tuple[str, ...]:
    return tuple(digest for event in rank.inputs for digest in event.hashes)


def _in_effect(candidate: Trace) -> Guard:
    """Each axis of the Point must have done something: split a tensor, or share the data."""
    used = {
        axis
        for rank in candidate.ranks
        for event in rank.tensors.values()
        for placement in event.layout
        for axis in getattr(placement, "axes", None) or (getattr(placement, "axis", ""),)
    }
    if len({tuple((e.step, e.microbatch) for e in rank.inputs) for rank in candidate.ranks}) > 1:
        used.add("dp")
    if len({frozenset(rank.modules) for rank in candidate.ranks}) > 1:
        used.add("pp")
    for axis, size in candidate.sizes.items():
        if size > 1 and axis not in used:
            yield (
                "in-effect",
                f"{axis}={size} had no effect: no tensor is split, summed or distributed over "
                f"{axis}. Either the program ignores the axis, or annotations are missing",
            )


def _dropout(candidate: Trace) -> Guard:
    for rank in candidate.ranks:
        rates = rank.note("dropout")
        if rates and rank.steps and all(s.rng_before == s.rng_after for s in rank.steps):
            yield "dropout", f"dropout {rates[0]} is on and drew no numbers on rank {rank.rank}"
            return


def _sensitive(comparison: Comparison) -> Guard:
    for kind, compared in comparison.compared.items():
        blind = [id for id in comparison.insensitive if id.kind == kind]
        if len(blind) > MOST_INSENSITIVE * compared:
            yield (
                "sensitive",
                f"{len(blind)} of {compared} tensors of kind {kind} are allowed an error as "
                f"large as themselves, {blind[0].path} for one: rounding hides any bug there",
            )


def _measured(rung: Rung) -> Guard:
    if rung.perturbed is None and rung.shadow is None:
        yield "measured", "no rounding was measured, so only equal bits could pass"
