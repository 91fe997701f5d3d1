"""Distinguishes wrong annotations from wrong code.  Called by the ladder after a failure.

A declared layout is trusted if the parts of the tensor fit together in it.  If they do not, the
layouts that the values (or a parameter's shape) allow are tried on the whole candidate, as if
nothing had been declared.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import msgspec

from pytest_trainsafe.align.words import describe
from pytest_trainsafe.core.finding import Finding
from pytest_trainsafe.core.layout import Layout
from pytest_trainsafe.core.tensor_id import INITIAL, TensorId
from pytest_trainsafe.judges.compare.compare import compare
from pytest_trainsafe.judges.compare.comparison import Comparison
from pytest_trainsafe.judges.compare.declarations.adopt import adopt
from pytest_trainsafe.judges.compare.declarations.alike import cut_by_shape
from pytest_trainsafe.judges.compare.declarations.infer import AXES, infer_all
from pytest_trainsafe.judges.compare.declarations.infer_permuted import Permutation, infer_permuted
from pytest_trainsafe.judges.compare.declarations.propose import (
    LAYOUT_CHECKS,
    order_at,
    samples,
)
from pytest_trainsafe.judges.compare.declarations.suggest import MissingLayout, place_of
from pytest_trainsafe.judges.compare.rung import RungTraces
from pytest_trainsafe.judges.loosen import Loosen
from pytest_trainsafe.trace.schema import TensorEvent

#: The checks that fail if parts do not fit together.
_UNFIT = LAYOUT_CHECKS - {"replicas"}

#: The prefixes of layout sources that users write.
_BY_HAND = ("parameters", "modules", "attribute")

#: The largest numbers of wrong declarations that are reported, and of tensors that are examined.
MAX_LISTED = 3
MAX_NAMES = 100


@dataclasses.dataclass(frozen=True, slots=True)
class Misdeclared:
    """Wrong declarations of layouts.

    `sentences` describes each of them, and `first` is what declares the first of them, such as
    "parameters: fc.weight".  `left` is the first failing finding that remains with
    corrected layouts, None if nothing fails then.
    """

    sentences: list[str]
    left: Finding | None
    first: str


def misfits(rung: RungTraces, comparison: Comparison) -> bool:
    """Whether the parts of any tensor do not fit together in the layout that a user declared."""
    return next(_misfits(rung, comparison), None) is not None


def misdeclared(
    rung: RungTraces, comparison: Comparison, loosen: Sequence[Loosen]
) -> Misdeclared | None:
    """The wrong declarations and the layouts that fit; None if no layout fits."""
    needs: list[MissingLayout] = []
    wrong: dict[tuple[str, str, str], str] = {}
    shaped: set[TensorId] = set()
    for id, event in _misfits(rung, comparison):
        order: Permutation = ()
        if id.kind == "param":  # its values depend on the declared layout, its shape does not
            fits = cut_by_shape(rung, id) if id.step == INITIAL else None
        else:
            fits, order = _by_values(rung, id)
        if fits is None:
            continue
        how = f", with permuted: {{{order_at(rung.candidate)}: {list(order)}}}" if order else ""
        key = event.layout_source, describe(event.layout), describe(fits) + how
        wrong.setdefault(key, id.path)
        if id.kind == "param":
            shaped.add(id)
        else:
            source, ndim = event.layout_source, len(event.shape)
            need = MissingLayout("modules", id.module, place_of(id), (), fits, source, ndim, order)
            needs.append(need)
    if not wrong:
        return None
    left = _first_left(comparison, shaped)
    if needs:
        trace = adopt(rung.candidate, needs)
        left = _first_left(compare(dataclasses.replace(rung, candidate=trace), loosen), shaped)
    return Misdeclared(
        [
            f"{source} declares {said}, but the parts of {path} do not fit this layout; they fit "
            f"{fits}"
            for (source, said, fits), path in list(wrong.items())[:MAX_LISTED]
        ],
        left,
        next(iter(wrong))[0],
    )


def _first_left(comparison: Comparison, explained: set[TensorId]) -> Finding | None:
    failing = (f for f in comparison.findings if f.verdict == "fail")
    return next((f for f in failing if f.where not in explained), None)


def _misfits(rung: RungTraces, comparison: Comparison) -> Iterator[tuple[TensorId, TensorEvent]]:
    """The first tensor of each name whose parts do not fit its user-declared layout."""
    seen: set[tuple[str, str, str]] = set()
    for finding in comparison.findings:
        id = finding.where
        if finding.verdict != "fail" or finding.check not in _UNFIT or id is None:
            continue
        kind = "activation" if id.kind == "activation_grad" else id.kind
        key = (kind, id.module, id.name)  # outputs come before their gradients
        holders = rung.candidate.holders(id)
        if key in seen or len(seen) >= MAX_NAMES or not holders:
            continue
        event = holders[0][1]
        if event.layout and event.layout_source.startswith(_BY_HAND):
            seen.add(key)
            yield id, event


def _by_values(rung: RungTraces, id: TensorId) -> tuple[Layout | None, Permutation]:
    """The one layout with which the parts match the reference, and the permutation they need.

    (None, ()) if there is no such layout or more than one.
    """
    evidence = [
        dataclasses.replace(
            sample, parts=[msgspec.structs.replace(part, layout=()) for part in sample.parts]
        )
        for sample in samples(rung, id)
    ]
    if not evidence:
        return None, ()
    found = infer_all(evidence, rung.candidate.sizes, AXES)
    order: Permutation = ()
    if not found.explained and id.kind == "activation":
        found, order = infer_permuted(evidence, rung.candidate.sizes, AXES)
    fits = found.confirmed()
    return (fits[0], order) if len(fits) == 1 else (None, ())
