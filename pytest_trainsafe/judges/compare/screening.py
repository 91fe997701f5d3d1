"""Screens tensors by their sketches: clears them, or makes them suspects that are judged again."""

from __future__ import annotations

import math

import msgspec

from pytest_trainsafe.align.sketched import Sketched
from pytest_trainsafe.align.updates import ends
from pytest_trainsafe.core.rungs.table import rung_named
from pytest_trainsafe.core.tensor_id import INITIAL, TensorId
from pytest_trainsafe.judges.compare.comparison import Measured
from pytest_trainsafe.judges.compare.results import Results
from pytest_trainsafe.judges.compare.tensors.screen import same, screen_tensor
from pytest_trainsafe.judges.compare.tensors.sketches import sketch_of, update_sketch
from pytest_trainsafe.judges.compare.tolerance.reference_tolerances import (
    flipped,
)

#: The dtypes of integers and booleans, for which rounding allows no difference.
COUNTS = frozenset(
    ["bool", *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))]
)


class Screening(Results):
    """A comparison of tensors that were recorded only as sketches."""

    def screen(self, id: TensorId) -> None:
        """Clear a tensor by its sketches, or make it a suspect."""
        if any(event.dtype in COUNTS for _, event in self.rung.reference.holders(id)):
            # Compared exactly: rounding allows counts no difference.
            cleared = same(*(sketch_of(trace, id) for trace in self.traces[:2]))
            if cleared:
                self.count(id)
        elif id.kind not in ("param", "master_param"):
            sketches = [sketch_of(trace, id) for trace in self.traces]
            cleared = self.screened(id, *sketches)
        elif id.step == INITIAL:
            cleared = same(*(sketch_of(trace, id) for trace in self.traces[:2]))
            if cleared:
                self.count(id)
        elif id.kind == "param" and self.has_master(id):
            copies = (
                [event.master_copy for _, event in trace.holders(id)] for trace in self.traces[:2]
            )
            own, references = (all(each) for each in copies)
            # If ranks hold flat ranges of the master copy, each reports on its own; the rest are
            # replicas.
            own = own and sketch_of(self.rung.candidate, id) is not None
            cleared = own or not references  # the reference does not satisfy this relation
        elif ends(self.rung.candidate, id) is None or ends(self.rung.reference, id) is None:
            self.result.uncovered["update"] += 1
            return
        else:
            candidate, expected, *others = (update_sketch(trace, id) for trace in self.traces)
            self.result.moved += expected is not None and bool(expected.values.any())
            value = sketch_of(self.rung.reference, id)
            size = value.norm if value is not None else 0.0
            least = 0.5 * self.tolerances.epsilon(id) * size
            if rung_named(self.rung.dtype).low and expected is not None:
                least = max(least, flipped(expected.norm, math.prod(expected.shape)))
            judged_as = msgspec.structs.replace(id, kind="update")
            cleared = self.screened(judged_as, candidate, expected, *others, least=least)
        if not cleared:
            self.result.suspects.append(id)

    def screened(
        self,
        id: TensorId,
        candidate: Sketched | None,
        reference: Sketched | None,
        *others: Sketched | None,
        least: float = 0.0,
    ) -> bool:
        """Whether the sketches clear a tensor; if so, it is counted as compared."""
        loosened = self.loosening(id)
        found = screen_tensor(
            candidate,
            reference,
            others,
            self.rung.dtype,
            loosened=loosened.factor if loosened is not None else 1.0,
            least=least,
        )
        if not found.cleared:
            return False
        self.count(id)
        if self.result.measured is not None:
            error = found.ratio * found.allowed
            self.result.measured[id] = Measured(error, found.allowed, found.ratio)
        self.result.zero[id.kind] += reference is not None and not reference.values.any()
        if loosened is not None:
            self.result.loosened.append((id, loosened))
        if found.ratio > self.result.worst:
            self.result.worst, self.result.worst_id = found.ratio, id
        if found.allowed >= 1 and id.kind != "update":
            self.result.insensitive.append(id)
        return True
