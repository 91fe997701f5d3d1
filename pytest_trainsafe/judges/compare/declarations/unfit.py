"""Says why no layout was compared with a tensor's values: none gives the ranks' parts their shapes.

Called by `propose` for the first failing tensor without a layout, if no layout is the nearest one.
"""

from __future__ import annotations

from collections.abc import Sequence

from pytest_trainsafe.align.merge import Part
from pytest_trainsafe.align.words import describe
from pytest_trainsafe.judges.compare.declarations.infer import Inferred


def unfit(inferred: Inferred, whole: Sequence[int], parts: Sequence[Part]) -> str:
    """A clause on parts of a tensor for which `inferred` has no layout, not even a nearest one."""
    shapes = [list(part.tensor.shape) for part in parts]
    if inferred.partly is not None:
        return (
            f"no layout explains it in all steps and micro-batches; {describe(inferred.partly)} "
            "explains it in one of them"
        )
    same = all(shape == shapes[0] for shape in shapes)
    held = f"of shape {shapes[0]}" if same else f"of the shapes {shapes}"
    known = parts[0].layout
    if known:
        return (
            f"no layout with the known part of its layout ({describe(known)}) cuts a tensor of "
            f"shape {list(whole)} into parts {held}"
        )
    return f"no layout cuts a tensor of shape {list(whole)} into parts {held}"
