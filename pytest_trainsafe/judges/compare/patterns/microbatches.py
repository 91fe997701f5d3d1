"""Recognises gradients in which micro-batches are missing, repeated or weighted wrongly."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from pytest_trainsafe.align.merge import Part
from pytest_trainsafe.core.finding import Pattern
from pytest_trainsafe.core.indices import LayoutError, extract
from pytest_trainsafe.judges.compare.patterns.partial_sum import names_axis
from pytest_trainsafe.judges.compare.patterns.wrong_tensor import WrongTensor

#: The allowed error of a measured weight.
BLUR = 0.02

#: How many elements are needed per fitted weight.
ELEMENTS_PER_WEIGHT = 4

#: The cause if a sum lacks micro-batches that are not all those of some ranks.
LOST = "gradients are cleared, reduced or used before all micro-batches are added"

#: The cause if some micro-batches have another weight.
WEIGHTED = (
    "a micro-batch is counted again, or weighted by the wrong number of tokens; or what was "
    "accumulated is scaled before the next backward"
)

#: The largest number of ranks whose micro-batches are listed.
MAX_RANKS = 4


@dataclass(frozen=True, slots=True)
class Owners:
    """The ranks along `axes` and the micro-batches that each computes: {(0,): {0, 1}, ...}."""

    axes: tuple[str, ...]
    numbers: Mapping[tuple[int, ...], frozenset[int]]

    def at(self, part: Part) -> tuple[int, ...]:
        """The coordinates along `axes` of the part's rank."""
        return tuple(part.coordinates[axis] for axis in self.axes)

    @property
    def along(self) -> str:
        """The axes in words, "dp" or "dp_replicate and dp_shard"."""
        return " and ".join(self.axes)


def own_terms(wrong: WrongTensor) -> Pattern | None:
    """Matches if every rank holds only the sum over the micro-batches that it computes itself.

    So no reduction over the ranks ran.  Each rank may hold a multiple of its sum, because clipping
    divides by the norm of what the rank holds.
    """
    if not _fits_terms(wrong):
        return None
    weights: dict[int, Mapping[int, float]] = {}
    for owners in _owners(wrong):
        for part in wrong.parts:
            if part.rank not in weights:
                fitted = _weights_of_part(wrong, part)
                if fitted is None:
                    return None
                weights[part.rank] = fitted
        if all(_is_own(weights[p.rank], owners.numbers[owners.at(p)]) for p in wrong.parts):
            return _own(wrong, owners, weights)
    return None


def other_weights(wrong: WrongTensor) -> Pattern | None:
    """Matches a sum over micro-batches in which some are missing or have another weight.

    Fits the value, and the reference too, as a weighted sum of the reference's micro-batch
    gradients.  Both must fit, and the weights of some micro-batches must differ.
    """
    if not _fits_terms(wrong):
        return None
    named = _weights(wrong, wrong.value, wrong.reference, wrong.terms)
    if named is None:
        return None
    count = len(named)
    missing = [index for index, ratio in named.items() if abs(ratio) <= BLUR]
    right = [index for index, ratio in named.items() if abs(ratio - 1) <= BLUR]
    if len(missing) == count:
        return None
    if missing:
        return _missing(wrong, missing, count)
    if right and len(right) < count:
        listed = ", ".join(f"micro-batch {i}: {r:.3g}" for i, r in named.items() if i not in right)
        text = f"some micro-batches have a wrong weight in the sum ({listed} times the right one)"
        short = f"{listed} times the right weight"
        return Pattern("other micro-batches", text, cause=WEIGHTED, short=short)
    return None


def _missing(wrong: WrongTensor, missing: Sequence[int], count: int) -> Pattern:
    """The pattern of a sum without the micro-batches `missing`, of `count`.

    If these are all the micro-batches of some ranks, the ranks are named: then a reduction over the
    ranks is wrong, and not the sum over micro-batches on a rank.
    """
    many = len(missing) > 1
    batches = f"micro-batch{'es' if many else ''} {', '.join(map(str, missing))} of {count}"
    are = "are" if many else "is"
    for owners in _owners(wrong):
        left_out = [at for at, numbers in owners.numbers.items() if numbers <= {*missing}]
        if {*missing} != frozenset().union(*(owners.numbers[at] for at in left_out)):
            continue
        ranks = _ranks(owners, left_out)
        text = (
            f"{batches} (counted from 0) {are} missing from the sum: all micro-batches of {ranks}"
        )
        cause = (
            f"the gradients of {ranks} are not added over {owners.along}: the all-reduce is "
            "missing, another collective such as a broadcast takes its place, or its group lacks "
            "these ranks"
        )
        axis = owners.axes[0] if len(owners.axes) == 1 else owners.along
        short = f"the gradients of {ranks} are not added over {owners.along}"
        return Pattern("other micro-batches", text, axis, cause, short=short)
    text = f"{batches} (counted from 0) {are} missing from the sum"
    short = f"{batches} missing from the sum"
    return Pattern("other micro-batches", text, cause=LOST, short=short)


def _own(wrong: WrongTensor, owners: Owners, weights: Mapping[int, Mapping[int, float]]) -> Pattern:
    """The pattern of ranks that hold only the sum over their own micro-batches."""
    first = {owners.at(part): part.rank for part in reversed(wrong.parts)}
    each = []
    for at in sorted(owners.numbers):
        numbers = sorted(owners.numbers[at])
        scale = weights[first[at]][numbers[0]]
        times = "" if abs(scale - 1) <= BLUR else f", times {scale:.3g}"
        each.append(f"rank{first[at]} of {_listed(numbers)}{times}")
    more = f"; and {len(each) - MAX_RANKS} more" if len(each) > MAX_RANKS else ""
    text = (
        f"each rank of {owners.along} holds only the sum over its own micro-batches, not over all "
        f"{len(wrong.terms)}: {'; '.join(each[:MAX_RANKS])}{more}"
    )
    if any(", times " in one for one in each):
        text += " (clipping by the norm of what each rank holds gives such a factor)"
    sharded = any(names_axis(part, axis) for part in wrong.parts for axis in owners.axes)
    missing = "a reduce-scatter" if sharded else "an all-reduce"
    cause = f"{missing} over {owners.along} is missing for this gradient"
    axis = owners.axes[0] if len(owners.axes) == 1 else owners.along
    short = f"partial sums over {owners.along}, {missing.split()[1]} missing"
    return Pattern("partial sum", text, axis, cause, short=short)


def _is_own(weights: Mapping[int, float], own: frozenset[int]) -> bool:
    """Whether only the micro-batches `own` have a weight, and all of these the same."""
    others = [weight for index, weight in weights.items() if index not in own]
    mine = [weights[index] for index in own]
    scale = max(map(abs, mine))
    return (
        scale > 0
        and max(mine) - min(mine) <= BLUR * scale
        and all(abs(weight) <= BLUR * scale for weight in others)
    )


def _owners(wrong: WrongTensor) -> Iterator[Owners]:
    """Yields the sets of axes along which ranks compute different micro-batches, smallest first.

    Only sets are yielded whose ranks divide all micro-batches among them, each with a part of its
    own.
    """
    sized = [axis for axis, size in wrong.sizes.items() if size > 1]
    for count in range(1, len(sized) + 1):
        for axes in itertools.combinations(sized, count):
            numbers: dict[tuple[int, ...], frozenset[int]] = {}
            for part in wrong.parts:
                at = tuple(part.coordinates[axis] for axis in axes)
                numbers[at] = numbers.get(at, frozenset()) | wrong.computed.get(
                    part.rank, frozenset()
                )
            total = sum(map(len, numbers.values()))
            whole = frozenset().union(*numbers.values()) == wrong.terms.keys()
            if len(numbers) > 1 and all(numbers.values()) and whole and total == len(wrong.terms):
                yield Owners(axes, numbers)


def _fits_terms(wrong: WrongTensor) -> bool:
    """Whether weights of the micro-batches' gradients can be fitted to the tensor.

    A fit minimises an error, which exact numbers do not have; `scaled` and `partial_sum` need none.
    """
    if len(wrong.terms) < 2 or wrong.value.is_complex() or wrong.numbers.exact:
        return False
    return all(term.shape == wrong.value.shape for term in wrong.terms.values())


def _weights_of_part(wrong: WrongTensor, part: Part) -> Mapping[int, float] | None:
    """The weights of the micro-batches in what one rank holds, as `_weights` returns them."""

    def mine(tensor: torch.Tensor) -> torch.Tensor:
        return extract(tensor, part.layout, part.coordinates, wrong.sizes)

    try:
        terms = {index: mine(term) for index, term in wrong.terms.items()}
        reference = mine(wrong.reference)
    except (LayoutError, IndexError, RuntimeError):
        return None
    if reference.shape != part.tensor.shape:
        return None
    return _weights(wrong, part.tensor.to(torch.float64), reference, terms)


def _weights(
    wrong: WrongTensor,
    value: torch.Tensor,
    reference: torch.Tensor,
    micro_batches: Mapping[int, torch.Tensor],
) -> Mapping[int, float] | None:
    """By micro-batch, its weight in `value` divided by its weight in `reference`.

    None if the micro-batches' gradients do not determine the weights, or do not explain both.
    """
    if value.numel() < ELEMENTS_PER_WEIGHT * len(micro_batches):
        return None
    terms = torch.stack([term.reshape(-1) for term in micro_batches.values()], dim=1)
    # With a Gram matrix, one pass over the terms is enough.
    gram = terms.T @ terms
    if not float(torch.linalg.cond(gram)) <= 1e8:
        return None  # micro-batches with similar gradients, or with none, cannot be distinguished
    both = torch.stack([value.reshape(-1), reference.reshape(-1)], dim=1)
    weights = torch.linalg.solve(gram, terms.T @ both)
    fitted = (terms @ weights).T.reshape(2, *value.shape)
    if not (wrong.explains(fitted[0], value) and wrong.explains(fitted[1], reference)):
        return None
    ratios = (weights[:, 0] / weights[:, 1]).tolist()
    return dict(zip(micro_batches, ratios, strict=True))


def _ranks(owners: Owners, places: Sequence[tuple[int, ...]]) -> str:
    """Ranks along axes in words: "dp rank 1", "dp ranks 1, 2"."""
    if len(owners.axes) > 1:
        return f"the ranks at {', '.join(map(str, sorted(places)))} of {owners.along}"
    numbers = sorted(at[0] for at in places)
    return f"{owners.along} rank{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"


def _listed(numbers: Sequence[int]) -> str:
    """Micro-batches in words: "0", "0 and 1", "0, 1 and 2"."""
    *others, last = map(str, numbers)
    return f"{', '.join(others)} and {last}" if others else last
