"""Advice for programs that fix a dtype which is not that of the rung.  Called by the ladder.

A program that receives into a float32 tensor works in its own dtype.  In float64, other ranks send
float64, and the group fails because its ranks disagree on a dtype.
"""

from __future__ import annotations

import re

import msgspec

from pytest_trainsafe.core.rungs.table import DTYPES, rung_named
from pytest_trainsafe.launch import GroupFailure

_DTYPES = re.compile(rf"\b(?:{'|'.join(DTYPES)})\b")


def with_dtype_advice(failure: GroupFailure, dtype: str, own: str) -> GroupFailure:
    """The failure of a Run in `dtype`; with advice if the program probably fixes another dtype.

    `own` is the dtype of the program's recipe.  Advice is given if `dtype` differs from it and if
    ranks called one collective with `dtype` and with another dtype.
    """
    result = failure.result
    found = {name for text in result.mismatches[:1] for name in _DTYPES.findall(text)}
    others = sorted(found - {dtype})
    if dtype == own or dtype not in found or len(others) != 1:
        return failure
    fixed = others[0]
    method = rung_named(fixed).method
    hint = (
        f"this Run computes in {dtype}, and one side of the collective has {fixed}: the program "
        f"probably fixes {fixed} for a tensor (dtype=torch.{fixed}, .{method}(), or a "
        f"buffer to receive into), where ctx.dtype would follow the Run. Use ctx.dtype, or judge "
        f"the program in {fixed} alone, with --trainsafe-dtype {fixed}"
    )
    hints = [each for each in (result.hint, hint) if each]
    hinted = msgspec.structs.replace(result, hint="\n".join(hints))
    return GroupFailure(hinted, failure.what, axis=failure.axis)
