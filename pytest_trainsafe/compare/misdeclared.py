"""Tells a declaration that is wrong from code that is.  Called by the ladder after a failure.

What is declared is taken for right until its parts do not even fit together.  Then the layouts
that the values, or a parameter's shape, allow are looked at, as if nothing had been declared.
"""

from __future__ import annotations

from dataclasses import replace

import msgspec

from pytest_trainsafe.align.infer import AXES, infer_all
from pytest_trainsafe.align.layout import Layout, Shard
from pytest_trainsafe.align.words import describe
from pytest_trainsafe.compare.comparison import Comparison
from pytest_trainsafe.compare.propose import samples
from pytest_trainsafe.compare.rung import Rung
from pytest_trainsafe.finding import Finding
from pytest_trainsafe.trace.schema import INITIAL

#: What parts look like that do not fit together.
_UNFIT = frozenset({"hole", "overlap", "shape", "layout"})

#: Where a user declares layouts.
_BY_HAND = ("parameters", "modules", "loss", "attribute")


def misdeclared(rung: Rung, comparison: Comparison) -> str:
    """What is declared wrongly of the first wrong tensor, and what would fit; "" for nothing."""
    first = next((f for f in comparison.findings if f.verdict == "fail"), None)
    if first is None or first.where is None or first.check not in _UNFIT:
        return ""
    holders = rung.candidate.holders(first.where)
    event = holders[0][1]
    if not event.layout_source.startswith(_BY_HAND) or not event.layout:
        return ""
    fits = _by_shape(rung, first) if first.where.kind == "param" else _by_values(rung, first)
    if not fits:
        return ""
    who = event.layout_source
    return (
        f"{who} says {describe(event.layout)}, which the parts of {first.where.path} do not fit; "
        f"they fit {' or '.join(fits)}. Correct the declaration, or the code that cuts it so"
    )


def _by_values(rung: Rung, finding: Finding) -> list[str]:
    """The layout with which the parts are the reference."""
    assert finding.where is not None
    asked = [
        replace(sample, parts=[msgspec.structs.replace(part, layout=()) for part in sample.parts])
        for sample in samples(rung, finding.where)
    ]
    if not asked:
        return []
    return [describe(layout) for layout in infer_all(asked, rung.candidate.sizes, AXES).telling()]


def _by_shape(rung: Rung, finding: Finding) -> list[str]:
    """The cut of a parameter that its shape shows; it was filled by what is declared."""
    assert finding.where is not None
    if finding.where.step != INITIAL or not rung.reference.holders(finding.where):
        return []
    part = rung.candidate.holders(finding.where)[0][1].shape
    whole = rung.reference.holders(finding.where)[0][1].shape
    if len(part) != len(whole):
        return []
    cut = [dim for dim, length in enumerate(part) if length != whole[dim]]
    tp = rung.candidate.sizes["tp"]
    if len(cut) == 1 and part[cut[0]] == -(-whole[cut[0]] // tp):
        layout: Layout = (Shard(cut[0], "tp"),)
        return [describe(layout)]
    return [describe(())] if not cut else []
