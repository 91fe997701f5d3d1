"""The row `elements` of a report: how many elements of a tensor differ, and the largest difference.

`torch.testing.assert_close` reports the same figures.
"""

from __future__ import annotations

from pytest_trainsafe.core.finding import Mismatch
from pytest_trainsafe.core.usage import in_print


def mismatch_text(mismatch: Mismatch) -> str:
    """How many elements of a tensor differ, and by how much at most.

    `3 of 8 (37.5 %) differ by more than ...; the greatest absolute difference is ...`.
    """
    total, differing = mismatch.elements, mismatch.differing
    values = " instead of ".join(in_print(mismatch.value, mismatch.expected))
    if total == 1:
        return f"the only element is {values}, a difference of {mismatch.difference:.1e}"
    by = f" by more than {mismatch.threshold:.1e}" if mismatch.threshold else ""
    return (
        f"{differing} of {total} ({100 * differing / total:.1f} %) differ{by}; the greatest "
        f"absolute difference is {mismatch.difference:.1e}, at index {mismatch.index}: {values}"
    )
