"""Judges the initial values of parameters and master copies, and each step's updates."""

from __future__ import annotations

import msgspec
import torch

from pytest_trainsafe.align.merge import Merged
from pytest_trainsafe.core.tensor_id import INITIAL, TensorId
from pytest_trainsafe.judges.compare.explain.mismatch import mismatch_of
from pytest_trainsafe.judges.compare.patterns.rows import MISPLACED
from pytest_trainsafe.judges.compare.results import is_finite, is_number, not_finite
from pytest_trainsafe.judges.compare.screening import Screening
from pytest_trainsafe.judges.compare.tensors.tensor import TensorJudgement
from pytest_trainsafe.judges.compare.tensors.values import Values
from pytest_trainsafe.judges.compare.tolerance.reference_tolerances import (
    Undetermined,
    without,
)

#: An element of undetermined sign counts as flipped if its update differs from the reference's by
#: more than this share of the largest update.
TURNED_SHARE = 0.1


class Parameters(Screening):
    """Judges initial parameters, master copies and updates."""

    def parameter(self, order: int, id: TensorId, merged: Merged, reference: torch.Tensor) -> bool:
        """Judge a parameter's initial value or its update.  Returns whether it passed."""
        assert merged.tensor is not None
        if not is_number(reference) or merged.tensor.shape != reference.shape:
            return self.judge(order, id, merged, reference, self.tolerances.exact_tolerance(id))
        if id.step == INITIAL:
            return self.initial(order, id, merged, reference)
        if id.kind == "param" and self.has_master(id):
            return self.model_copy(order, id)
        passed = self.update(order, id)
        if passed:
            self.precision(order, id, merged.tensor, reference)
        return passed

    def initial(self, order: int, id: TensorId, merged: Merged, reference: torch.Tensor) -> bool:
        """Judge an initial value, which must equal the reference's.  Returns whether it passed."""
        assert merged.tensor is not None
        if not is_finite(reference):
            self.doubt(order, id, "reference-finite", not_finite(reference))
            return False
        self.count(id)
        numbers = self.rung.numbers
        wrong = int((~numbers.equal(merged.tensor, reference)).sum())
        if not wrong:
            return True
        difference = numbers.norm(numbers.subtract(merged.tensor, reference))
        error = difference / (numbers.norm(reference) or 1.0)
        differ = f"{wrong} of {reference.numel()} values differ"
        if id.kind == "master_param" and self.starts_alike(id):
            message = (
                f"the initial master copy is wrong: {differ} from the reference's, but the "
                "parameter that it copies agrees. Check the code that creates the optimizer"
            )
        else:
            message = (
                f"training starts from different parameters: {differ}. Use ctx.initialize(model), "
                "or load the same checkpoint at every Point"
            )
        judged = TensorJudgement("initial", message, error, 0.0, float("inf"))
        pattern = None
        if self.may_explain():
            pattern = self.explained(id, merged, reference, judged)
        if pattern is not None and pattern.name.startswith("zero"):
            pattern = None  # uninitialised memory contains zeros by chance
        if pattern is not None and pattern.name in MISPLACED:
            # To give the ranks other values would hide what cuts these wrongly.
            message = (
                f"training starts from different parameters: {differ}. The values are the "
                "reference's, at other places"
            )
        mismatch = None if numbers.exact else mismatch_of(merged.tensor, reference, 0.0)
        self.fail(order, id, judged.check, message, error, 0.0, pattern, mismatch)
        return False

    def starts_alike(self, id: TensorId) -> bool:
        """Whether the parameter of a master copy has the reference's initial value."""
        parameter = msgspec.structs.replace(id, kind="param")
        its, ours = self.reference.tensor(parameter), self.candidate.tensor(parameter)
        if its is None or ours is None:
            return False
        return its.shape == ours.shape and torch.equal(its, ours)

    def model_copy(self, order: int, id: TensorId) -> bool:
        """Judge whether a parameter equals its master copy, rounded to the parameter's dtype.

        The update of the master copy is judged separately.
        """
        if not _rounds(self.reference, id):
            return True  # the reference does not satisfy this relation
        if _rounds(self.candidate, id):
            return True
        message = (
            "the parameter does not equal its rounded master copy, as it does in the reference: "
            "the copy back into the model is missing, happens too early, or copies another part"
        )
        self.fail(order, id, "master-copy", message)
        return False

    def update(self, order: int, id: TensorId) -> bool:
        """Judge the update of a parameter in one step.  Returns whether it passed.

        Elements are left out if rounding may change the sign of their gradient.
        """
        candidate = self.candidate.update(id)
        expected = self.reference.update(id)
        if candidate is None or expected is None or candidate.shape != expected.shape:
            self.result.uncovered["update"] += 1
            return True
        self.result.moved += bool(expected.any())
        undetermined = self.undetermined.get(id.path)
        if undetermined is not None and undetermined.mask.shape == expected.shape:
            self.note_flipped(id, candidate, expected, undetermined)
            if bool(undetermined.mask.all()):
                self.result.undetermined += 1
                return True
            candidate = without(candidate, undetermined)
            expected = without(expected, undetermined)
        judged_as = msgspec.structs.replace(id, kind="update")
        tolerance = self.tolerances.update_tolerance(
            id, self.factor(judged_as), undetermined, expected
        )
        return self.judge(order, judged_as, Merged(candidate), expected, tolerance)

    def note_flipped(
        self,
        id: TensorId,
        candidate: torch.Tensor,
        expected: torch.Tensor,
        undetermined: Undetermined,
    ) -> None:
        """Record the step if an undetermined element moves differently from the reference.

        Only the first such step is recorded.  `candidate` and `expected` are the parameter's
        updates in the candidate and the reference.  `undetermined` is a mask of the elements whose
        gradient may change its sign by rounding; they are not judged.
        """
        if self.result.flipped_in is not None or not expected.numel():
            return
        apart = torch.where(undetermined.mask, (candidate - expected).abs(), 0.0)
        if float(apart.max()) > TURNED_SHARE * float(expected.abs().max()):
            self.result.flipped_in = id.step


def _rounds(values: Values, id: TensorId) -> bool:
    """Whether a parameter equals its master copy rounded to the parameter's dtype."""
    value = values.tensor(id)
    master = values.tensor(msgspec.structs.replace(id, kind="master_param"))
    if value is None or master is None or master.shape != value.shape:
        return False
    dtype: torch.dtype = getattr(torch, values.trace.holders(id)[0][1].dtype)
    return torch.equal(master.to(dtype).to(value.dtype), value)
