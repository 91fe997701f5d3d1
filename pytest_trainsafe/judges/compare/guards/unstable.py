"""Doubts a comparison whose allowance is far wider than rounding at its rung ever is.

Noise of the size of rounding changes a tensor in float64 by some 1e-13 of its size.  If it changes
a tensor by 1e-6 or more, the program amplifies rounding: a function with jumps (quantisation,
rounding, a sign, a top-k) flips, or the computation is ill-conditioned, or the program differs from
itself.  A bug of that size would pass.  Called by the guards of a comparison.
"""

from __future__ import annotations

from collections.abc import Iterator

from pytest_trainsafe.core.rungs.table import rung_named
from pytest_trainsafe.core.tensor_id import TensorId
from pytest_trainsafe.judges.compare.comparison import Comparison

#: A tensor whose values are smaller than this share of the largest ones of its kind is itself
#: rounding, such as the gradient of a bias that a softmax ignores.
NEGLIGIBLE = 1e-6


def unstable(comparison: Comparison) -> list[tuple[TensorId, float]]:
    """The tensors whose allowance is wider than rounding explains, each with its allowance."""
    return [
        (id, allowed)
        for id, allowed, size in comparison.wide
        if size > NEGLIGIBLE * comparison.largest[id.kind]
    ]


def unstable_tensors(comparison: Comparison) -> Iterator[tuple[str, str]]:
    """A doubt for each kind with unstable tensors."""
    found, most = unstable(comparison), rung_named(comparison.dtype).steady
    for kind in dict.fromkeys(id.kind for id, _ in found):
        ours = [(id, allowed) for id, allowed in found if id.kind == kind]
        first, worst = ours[0][0], max(ours, key=lambda pair: pair[1])
        text = (
            f"noise of the size of rounding changes {len(ours)} of "
            f"{comparison.compared[kind]} tensors of kind {kind} so much that an error of "
            f"{worst[1]:.1g} of {worst[0].path} would pass; in {comparison.dtype}, rounding "
            f"explains less than {most:.0e}. From {first.path} on, the program amplifies "
            "rounding: it has a function with jumps (a quantisation, rounding, sign or choice), "
            "or it divides by or subtracts nearly equal values"
        )
        yield f"sensitive:{kind}", text
