"""Proposes annotations for tensors that have none and differ from their reference.

Called by `judges.compare.ladder.ladder` if a comparison failed.  A proposal changes no verdict: it
is text until a user adopts it.  Each proposal is first tried on the whole candidate.  This
distinguishes a missing annotation from a missing reduction, which makes later tensors wrong.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Sequence

import torch

from pytest_trainsafe.align.logical import logical_tensor, parts_of
from pytest_trainsafe.align.words import describe
from pytest_trainsafe.core.tensor_id import TensorId
from pytest_trainsafe.judges.compare.compare import compare
from pytest_trainsafe.judges.compare.comparison import Comparison
from pytest_trainsafe.judges.compare.declarations.adopt import adopt
from pytest_trainsafe.judges.compare.declarations.alike import (
    axes_for,
    is_open,
    like_others,
    shaped_as_whole,
)
from pytest_trainsafe.judges.compare.declarations.averaged import Means, may_be_means, means
from pytest_trainsafe.judges.compare.declarations.infer import Inferred, Sample, infer_all
from pytest_trainsafe.judges.compare.declarations.infer_permuted import Permutation, infer_permuted
from pytest_trainsafe.judges.compare.declarations.proposal import Proposal
from pytest_trainsafe.judges.compare.declarations.suggest import (
    AnnotationPatch,
    MissingLayout,
    cp_order,
    inexpressible,
    place_of,
    wanted,
)
from pytest_trainsafe.judges.compare.declarations.undecided import (
    is_among,
    reduced_modules,
    reduced_parameters,
    undecided,
)
from pytest_trainsafe.judges.compare.declarations.unfit import unfit
from pytest_trainsafe.judges.compare.rung import RungTraces
from pytest_trainsafe.judges.compare.tensors.errors import finite, norm
from pytest_trainsafe.judges.compare.tensors.tensor import judge_tensor
from pytest_trainsafe.judges.compare.tolerance.reference_tolerances import FEW
from pytest_trainsafe.judges.compare.unmatched import meant
from pytest_trainsafe.judges.loosen import Loosen
from pytest_trainsafe.trace.facts import Annotations
from pytest_trainsafe.trace.reader import Trace

#: The checks that a missing annotation makes fail.
LAYOUT_CHECKS = frozenset({"hole", "overlap", "layout", "replicas", "shape"})

#: How often the search is repeated: a newly found layout exposes the next missing one.
ROUNDS = 4

#: The most tensors of one name whose layout is inferred together, and the most names in a round.
MAX_SAMPLES = 4
MAX_NAMES = 500

#: If a tensor has more elements than this, no other of its name is examined: its values suffice.
LARGE = 2**20


def has_missing(rung: RungTraces, comparison: Comparison) -> bool:
    """Whether a missing annotation could explain any failing finding of the comparison."""
    if next(_targets(rung, comparison), None) is not None:
        return True
    return may_be_means(rung, comparison)


def propose(
    rung: RungTraces,
    comparison: Comparison,
    loosen: Sequence[Loosen],
    again: Callable[[RungTraces, Comparison], tuple[RungTraces, Comparison]] | None = None,
) -> Proposal | None:
    """Find the missing layouts of a failed comparison.

    Returns None if no layout is missing, or if some tensors could not be judged because their
    values were not recorded.  What an annotation was meant for that matches nothing is only named,
    because that annotation is to be corrected.  `again` is called if tensors still fail with the
    proposed layouts: it measures rounding with more samples of noise and compares again, because
    the failures may be due to too few samples.
    """
    if comparison.suspects:
        return None
    used = _used(rung.candidate)
    order = used.cp_order
    needs: dict[tuple[str, str, str], MissingLayout] = {}
    unexplained = ""
    trace, first = rung.candidate, comparison
    for _ in range(ROUNDS):
        if not comparison.failed:
            break
        found, unexplained = _round(dataclasses.replace(rung, candidate=trace), comparison)
        order = order or cp_order(found)
        for need in found:
            if (why := inexpressible(need, order)) and not unexplained:
                unexplained = f"{need.name}.{need.place}: {describe(need.layout)}, but {why}"
        fresh = {
            key: need
            for need in found
            if (key := (need.section, need.name, need.place)) not in needs
            and not inexpressible(need, order)
        }
        if not fresh:
            break
        needs |= fresh
        trace = adopt(rung.candidate, needs.values())
        comparison = compare(dataclasses.replace(rung, candidate=trace), loosen)
    more = list(like_others(rung, _targets(rung, comparison), needs.values()))
    if more:
        needs |= {(need.section, need.name, need.place): need for need in more}
        trace = adopt(rung.candidate, needs.values())
        comparison = compare(dataclasses.replace(rung, candidate=trace), loosen)
        _, unexplained = _round(dataclasses.replace(rung, candidate=trace), comparison)
    adopted = dataclasses.replace(rung, candidate=trace)
    if comparison.failed and needs and again is not None:
        adopted, comparison = again(adopted, comparison)
    averaged = None
    if comparison.failed:
        averaged = means(adopted, comparison, loosen)
    unseen = averaged if averaged is not None and averaged.clipped != 1.0 else None
    if unseen is not None:
        unexplained, averaged = "", None
    if not needs and not unexplained and averaged is None and unseen is None:
        return None
    left = None
    if averaged is None and unseen is None:
        left = next((f for f in comparison.findings if f.verdict == "fail"), None)
    kept = list(needs.values())
    if left is not None:
        reduced = reduced_parameters(rung, comparison)
        outputs = reduced_modules(rung, comparison, kept)
        kept = [
            need
            for need in kept
            if not need.sums
            or is_among(need, outputs)
            or (need.section == "parameters" and need.name in reduced)
        ]
    shaped = shaped_as_whole(rung, first)
    if shaped or averaged is not None:
        unexplained = ""  # the values are those of other elements, or a proposal fits
    candidate = rung.candidate
    parameters = {id.path for rank in candidate.ranks for id in rank.tensors if id.kind == "param"}
    sp = bool(candidate.point.get("sp", False))

    def declared(needs: Sequence[MissingLayout]) -> AnnotationPatch:
        result = wanted(needs, _sources(candidate), parameters, order=order, sp=sp)
        if used.cp_order:
            result.pop("cp_order", None)
        if averaged is not None:
            _declare(result, averaged)
        return result

    filled, withheld = bool(shaped), len(needs) - len(kept)
    names, open_ones = meant(candidate), undecided(rung, kept)
    # What may be a missing reduction as well is not put down to a misspelt entry.
    other = [need for need in (*kept, *shaped) if need not in open_ones]
    misspelt = [need for need in other if (need.section, need.name) in names]
    kept, shaped = ([n for n in each if n not in misspelt] for each in (kept, shaped))
    settled = [need for need in (*kept, *shaped) if need not in open_ones]
    whole = declared([*kept, *shaped])
    return Proposal(
        whole,
        len(kept) + (averaged.tensors if averaged is not None else 0),
        left,
        withheld,
        unexplained,
        used.file,
        averaged,
        len(shaped),
        used.model,
        _named((*kept, *shaped)),
        (adopted, comparison) if left is not None else None,
        tuple(needs.values()),
        open_ones,
        declared(settled) if open_ones else whole,
        _named(misspelt),
        filled,
        unseen,
    )


def _named(needs: Iterable[MissingLayout]) -> tuple[tuple[str, str], ...]:
    """The section and the name of everything in `needs`."""
    return tuple(dict.fromkeys((need.section, need.name) for need in needs))


def _declare(result: AnnotationPatch, averaged: Means) -> None:
    """Add the declaration of means in `averaged` to `result`, the proposed annotations."""
    if averaged.gradients or (averaged.dropped and averaged.wrapper):
        result["gradients"] = {"mean": list(averaged.gradients)}
    if averaged.loss:
        said = result.get("loss", {})
        result["loss"] = {**said, "mean": [*said.get("mean", ()), *averaged.loss]}


def _used(candidate: Trace) -> Annotations:
    """The annotations with which the candidate was recorded."""
    return next(iter(candidate.ranks[0].events_of(Annotations)), Annotations())


def _sources(candidate: Trace) -> dict[str, str]:
    """Maps each module that recorded an output to the origin of the output's layout.

    The origin is a `TensorEvent.layout_source`, such as an annotation pattern or "default".  The
    modules are in dataflow order.
    """
    return {
        id.module: event.layout_source
        for rank in candidate.ranks
        for id, event in rank.tensors.items()
        if id.kind == "activation"
    }


def _round(rung: RungTraces, comparison: Comparison) -> tuple[list[MissingLayout], str]:
    """Returns the layouts found for failing tensors, and a message.

    The message is on the first failing tensor for which no layout was found; "" if there is none.
    """
    found: list[MissingLayout] = []
    unexplained = ""
    failed = {f.where for f in comparison.findings if f.verdict == "fail"}
    for id in _targets(rung, comparison):
        outputs = id.kind == "activation_grad"
        if outputs and any(w is not None and _same(w, id, "activation") for w in failed):
            continue  # the output's layout may determine its gradient's
        tp_only = id.kind in ("param", "param_grad")
        axes = ("tp",) if tp_only else axes_for(rung.candidate, id)
        evidence = list(samples(rung, id))
        inferred = infer_all(evidence, rung.candidate.sizes, axes)
        order: Permutation = ()
        if not inferred.explained and id.kind == "activation":
            permuted, order = infer_permuted(evidence, rung.candidate.sizes, axes)
            inferred = permuted if order else inferred
        need = _need(rung, id, inferred, order)
        if need is not None:
            found.append(need)
        elif not unexplained:
            unexplained = _nearest(rung, id, inferred)
    return found, unexplained


def _same(where: TensorId, id: TensorId, kind: str) -> bool:
    return (where.kind, where.module, where.name) == (kind, id.module, id.name)


def _targets(rung: RungTraces, comparison: Comparison) -> Iterator[TensorId]:
    """Yields each name's first failing tensor that an annotation could fix, in dataflow order."""
    seen: set[tuple[str, str, str]] = set()
    for finding in comparison.findings:
        id = finding.where
        if finding.verdict != "fail" or finding.check not in LAYOUT_CHECKS or id is None:
            continue
        key = (id.kind, id.module, id.name)
        if key not in seen and len(seen) < MAX_NAMES and is_open(rung.candidate, id):
            seen.add(key)
            yield id


def samples(rung: RungTraces, id: TensorId) -> Iterator[Sample]:
    """Yields Samples of the tensor `id` and of a few others with its kind, name and step."""
    named = [
        other
        for other in rung.reference.ids()
        if other.step == id.step and _same(other, id, id.kind) and rung.candidate.holders(other)
    ]
    others = [other for other in named if other != id]
    size = math.prod(rung.reference.holders(id)[0][1].shape)
    for each in [id, *others[: MAX_SAMPLES - 1 if size <= LARGE else 0]]:
        reference = logical_tensor(rung.reference, each).whole
        if reference is None or not finite(reference.numpy()):
            continue
        yield Sample(
            parts_of(rung.candidate, each),
            reference,
            _Ratio(rung, each, reference),
            ("pp", "dp") if each.microbatch is not None else ("pp",),
            rung.numbers,
        )


class _Ratio:
    """Compares values of the tensor `id` with `reference`, its value in the reference.

    Calling it with a value of the whole tensor returns the value's error divided by the allowed
    error: above 1 if the value is wrong.
    """

    def __init__(self, rung: RungTraces, id: TensorId, reference: torch.Tensor) -> None:
        self.reference = reference.numpy()
        self.dtype = rung.dtype
        self.least = 0.0
        self.others = []
        if id.kind == "param":
            return  # parameters must start bitwise equal
        for trace in rung.measures():
            if trace.holders(id):
                other = logical_tensor(trace, id).whole
                if other is not None and other.shape == reference.shape and finite(other.numpy()):
                    self.others.append(other.numpy())
        if reference.numel() <= FEW and reference.is_floating_point():
            stored: torch.dtype = getattr(torch, rung.reference.holders(id)[0][1].dtype)
            self.least = 0.5 * torch.finfo(stored).eps * norm(self.reference)

    def __call__(self, value: torch.Tensor) -> float:
        if value.dtype.is_complex != bool(self.reference.dtype.kind == "c"):
            return float("inf")
        judged = judge_tensor(
            value.numpy(), self.reference, self.others, self.dtype, least=self.least
        )
        return judged.ratio if judged.passed else max(judged.ratio, 1.5)


def _need(
    rung: RungTraces, id: TensorId, inferred: Inferred, order: Permutation = ()
) -> MissingLayout | None:
    """The missing layout of a tensor if its values confirm exactly one; otherwise None."""
    layouts = inferred.confirmed()
    event = rung.candidate.holders(id)[0][1]
    if len(layouts) != 1:
        return None
    known = event.layout
    added = tuple(p for p in layouts[0] if p not in known)
    if not added and not order:
        return None
    ndim = len(event.shape)
    if id.kind == "loss":
        return MissingLayout("loss", "", "", known, added, event.layout_source, ndim)
    if id.kind == "param":
        return MissingLayout("parameters", id.path, "", known, added, event.layout_source, ndim)
    if id.kind == "param_grad":
        need = MissingLayout("parameters", id.path, "", known, added, event.layout_source, ndim)
        return need if need.sums else None
    need = MissingLayout(
        "modules", id.module, place_of(id), known, added, event.layout_source, ndim
    )
    at = order_at(rung.candidate) if order else ""
    return dataclasses.replace(need, order=order, order_at=at)


def order_at(candidate: Trace) -> str:
    """The axis that likely causes a permutation: sp if it is on, else the first axis in use."""
    role = candidate.sizes.mesh.role
    in_use = (role(axis) for axis, size in candidate.sizes.items() if size > 1)
    return "sp" if candidate.point.get("sp", False) else next(in_use, "tp")


def _nearest(rung: RungTraces, id: TensorId, inferred: Inferred) -> str:
    """The message for a tensor that no layout explains."""
    if inferred.explained:
        layouts = [describe(layout) for layout in inferred.confirmed()]
        if layouts == [describe(())]:
            return ""  # replicated and correct: the layout is not at fault
        if layouts:
            return f"{id.path}: several layouts explain it equally well: {'; '.join(layouts)}"
        shape = describe(inferred.explained[0].layout)
        return (
            f"{id.path}: its shape fits the layout {shape}, but its values cannot confirm a "
            "layout: all of them are equal or zero"
        )
    parts = parts_of(rung.candidate, id)
    if inferred.nearest is None:
        whole = rung.reference.holders(id)[0][1].shape
        return f"{id.path}: {unfit(inferred, whole, parts)}"
    near = f"{id.path}: no layout explains it; the nearest is {describe(inferred.nearest)}, which"
    if inferred.left == 0:
        near += f" gives the reference's values, except that {inferred.trouble}"
    else:
        near += f" leaves a relative error of {inferred.left:.2g}"
    return near
