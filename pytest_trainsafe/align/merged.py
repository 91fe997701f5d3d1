"""A logical tensor that was merged from the parts of ranks.  Made by merge and by judges."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from pytest_trainsafe.core.finding import Finding
from pytest_trainsafe.core.layout import Part


@dataclass(slots=True)
class Merged:
    """A logical tensor that was merged from the parts of ranks, and the findings of the merge.

    `tensor` has the dtype float64, complex128, int64 or bool.  It is None if the parts do not fit
    together at all.  `missing` masks elements that no rank holds, which are zero in `tensor`; it is
    None if there are none.  If replicas differ, the values of the lowest rank are used.  Each of
    these three faults is also a finding.
    """

    tensor: torch.Tensor | None
    findings: list[Finding] = field(default_factory=list)
    parts: list[Part] = field(default_factory=list)
    missing: torch.Tensor | None = None

    @property
    def whole(self) -> torch.Tensor | None:
        """The tensor if ranks hold all of it; else None."""
        return self.tensor if self.missing is None else None
