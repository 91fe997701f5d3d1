"""Collects the results of one comparison: findings, counts of tensors, and the largest error."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import torch

from pytest_trainsafe.align.merge import Merged
from pytest_trainsafe.core.finding import Finding, Mismatch, Pattern
from pytest_trainsafe.core.rungs.table import rung_named
from pytest_trainsafe.core.tensor_id import TensorId
from pytest_trainsafe.judges.compare.comparison import Comparison, Measured
from pytest_trainsafe.judges.compare.explain.mismatch import mismatch_of
from pytest_trainsafe.judges.compare.explain.module_code import module_code
from pytest_trainsafe.judges.compare.narrowed import narrowed
from pytest_trainsafe.judges.compare.rung import RungTraces
from pytest_trainsafe.judges.compare.tensors.allowance import Allowance
from pytest_trainsafe.judges.compare.tensors.errors import finite
from pytest_trainsafe.judges.compare.tensors.tensor import TensorJudgement, judge_allowed
from pytest_trainsafe.judges.compare.tensors.values import Values
from pytest_trainsafe.judges.compare.tolerance.reference_tolerances import (
    ReferenceTolerances,
    Tolerance,
    Undetermined,
)
from pytest_trainsafe.judges.loosen import Loosen
from pytest_trainsafe.report.sections import collecting
from pytest_trainsafe.trace.facts import Site
from pytest_trainsafe.trace.schema import TensorEvent

#: The largest number of tensors that are explained.  Explaining is as expensive as several
#: comparisons, and later tensors repeat the first faults.
MAX_EXPLAINED = 12


class Results:
    """The findings of one comparison so far, and the state kept between tensors."""

    def __init__(self, rung: RungTraces, loosen: Sequence[Loosen]) -> None:
        self.rung = rung
        self.loosen = loosen
        self.result = Comparison(rung.dtype, measured={} if collecting() else None)
        self.tolerances = ReferenceTolerances(rung)
        self.failed_step: int | None = None
        #: The last gradient of an output in the order of the backward, and the module whose
        #: gradient came before it, in the same micro-batch: "" if it is the first one.
        self._last: TensorId | None = None
        self._user = ""
        self.undetermined: dict[str, Undetermined] = {}
        self.counted: set[TensorId] = set()
        self.reference = self.tolerances.reference
        self.candidate = Values(rung.candidate)
        measures = [values.trace for values in self.tolerances.measures]
        self.traces = (rung.candidate, rung.reference, *measures)
        self._explained = 0

    def judge(
        self,
        order: int,
        id: TensorId,
        merged: Merged,
        reference: torch.Tensor,
        tolerance: Tolerance,
    ) -> bool:
        """Judge values by the measured rounding.  Returns whether they passed."""
        assert merged.tensor is not None
        if not tolerance.finite:
            self.doubt(order, id, "reference-finite", not_finite(reference))
            return False
        if merged.tensor.shape == reference.shape and reference.numel() == 0:
            return True
        if tolerance.unmeasured:
            self.unmeasured(order, id)
            return False
        judged = judge_allowed(
            merged.tensor.numpy(),
            reference.numpy(),
            tolerance.allowed,
            tolerance.size,
            self.rung.dtype,
            # One flipped element exceeds the allowance of a slice of an update.
            whole=id.kind == "update" and rung_named(self.rung.dtype).low,
        )
        self.note(id, tolerance, judged, merged.tensor)
        if judged.passed:
            self.precision(order, id, merged.tensor, reference)
            return True
        self.fail_judged(order, id, merged, reference, judged, tolerance.allowed)
        return False

    def passing(
        self, reference: torch.Tensor, tolerance: Tolerance
    ) -> Callable[[torch.Tensor], bool] | None:
        """Says whether a value of a tensor agrees with the reference; None if that is not known."""

        def passes(value: torch.Tensor) -> bool:
            arrays = value.numpy(), reference.numpy()
            judged = judge_allowed(*arrays, tolerance.allowed, tolerance.size, self.rung.dtype)
            return judged.passed

        return passes if tolerance.finite and not tolerance.unmeasured else None

    def precision(
        self, order: int, id: TensorId, value: torch.Tensor, reference: torch.Tensor
    ) -> None:
        """Add a doubt about a passing tensor whose values have less precision than its dtype."""
        how = narrowed(self.rung, id, value, reference)
        if how:
            hidden = f"{how}, and the rounding of {self.rung.dtype} hides the error"
            self.doubt(order, id, "narrowed", hidden)

    def note(
        self,
        id: TensorId,
        tolerance: Tolerance,
        judged: TensorJudgement,
        candidate: torch.Tensor | None = None,
    ) -> None:
        """Add a judgement to the result; `candidate` is None if it equals its reference."""
        loosened = self.loosening(id)
        if loosened is not None:
            self.result.loosened.append((id, loosened))
        if tolerance.undetermined is not None:
            before = self.undetermined.get(id.path)
            own = tolerance.rounding_of_zero(candidate) if candidate is not None else None
            self.undetermined[id.path] = Undetermined.of(
                tolerance.undetermined, id.step, before, own
            )
        self.count(id)
        if self.result.measured is not None:
            self.result.measured[id] = Measured(judged.error, judged.allowed, judged.ratio)
        self.result.zero[id.kind] += tolerance.size == 0.0
        if judged.ratio > self.result.worst:
            self.result.worst, self.result.worst_id = judged.ratio, id
        if judged.passed and self.loosening(id) is None:
            root = max(tolerance.elements, 1) ** 0.5
            self.result.note_size(id, judged.allowed, tolerance.size / root)
        if judged.passed and judged.allowed >= 1 and id.kind != "update":
            self.result.insensitive.append(id)

    def loosening(self, id: TensorId) -> Loosen | None:
        """The user's loosened tolerance for a tensor; None if there is none."""
        return next((entry for entry in self.loosen if entry.matches(id)), None)

    def factor(self, id: TensorId) -> float:
        """The factor of the user's loosened tolerance for a tensor; 1.0 if there is none."""
        loosened = self.loosening(id)
        return loosened.factor if loosened is not None else 1.0

    def replicas(self, id: TensorId, merged: Merged, reference: torch.Tensor) -> Pattern | None:
        """The pattern of the replicas that differ from the first one, which is correct.

        None if all replicas agree, if no pattern matches, or if too many tensors were explained.
        """
        odd = any(finding.check == "replicas" for finding in merged.findings)
        if not odd or not is_number(reference) or not self.may_explain():
            return None
        from pytest_trainsafe.judges.compare.explain.evidence import explain_replicas

        return explain_replicas(self.rung, id, merged, reference, self.tolerances.others(id))

    def explained(
        self, id: TensorId, merged: Merged, reference: torch.Tensor, judged: TensorJudgement
    ) -> Pattern | None:
        """The pattern of a tensor that failed; None if there is none."""
        from pytest_trainsafe.judges.compare.explain.evidence import explain_tensor

        return explain_tensor(self.rung, id, merged, reference, judged)

    def may_explain(self) -> bool:
        """Count one more explanation.  Returns whether it is within the limit."""
        self._explained += 1
        return self._explained <= MAX_EXPLAINED

    def unmeasured(self, order: int, id: TensorId) -> None:
        """Add a doubt about a tensor for which no rounding was measured."""
        message = (
            "no rounding was measured for this tensor: the runs that measure rounding did not "
            "record the tensor, or recorded values that are not finite"
        )
        self.doubt(order, id, "measured", message)

    def doubt(self, order: int, id: TensorId, check: str, message: str) -> None:
        """Add an inconclusive finding on a tensor."""
        finding = Finding(
            verdict="inconclusive", judge="compare", check=check, message=message, where=id
        )
        self.add(order, finding)

    def fail_judged(
        self,
        order: int,
        id: TensorId,
        merged: Merged,
        reference: torch.Tensor,
        judged: TensorJudgement,
        allowed: Allowance | None,
    ) -> None:
        """Add a failing finding for a judged tensor, with its pattern and mismatch."""
        pattern = None
        if judged.check != "shape":
            if self.may_explain():
                pattern = self.explained(id, merged, reference, judged)
            else:
                self.result.unsought.add(id)
        event = self.event(id)
        message = judged.message
        if judged.check == "shape" and event is not None:
            message += f" (the layout comes from {event.layout_source})"
        mismatch = None
        if merged.tensor is not None and not self.rung.numbers.exact:
            rounding = allowed.norm if allowed is not None else 0.0
            mismatch = mismatch_of(merged.tensor, reference, rounding)
        self.fail(order, id, judged.check, message, judged.error, judged.allowed, pattern, mismatch)

    def fail(
        self,
        order: int,
        id: TensorId,
        check: str,
        message: str,
        error: float | None = None,
        allowed: float | None = None,
        pattern: Pattern | None = None,
        mismatch: Mismatch | None = None,
    ) -> None:
        """Add a failing finding on a tensor."""
        finding = Finding(
            verdict="fail",
            judge="compare",
            check=check,
            message=message,
            where=id,
            error=error,
            allowed=allowed,
            mismatch=mismatch,
        )
        self.add(order, finding, pattern)

    def add(self, order: int, finding: Finding, pattern: Pattern | None = None) -> None:
        """Add a finding, with its position in dataflow and the candidate's module."""
        where = finding.where
        module = self.module(where.module) if where is not None else ("", "")
        user = ""
        if where is not None and where == self._last:
            user = self._user
            code = self.module(user) if user else ("", self._starts_backward())
            module, user = (code, user) if code[1] else (module, "")
        if finding.verdict == "fail" and where is not None:
            self.failed_step = where.step
        placed = msgspec.structs.replace(
            finding,
            order=order,
            dtype=self.rung.reference.manifest.dtype,
            pattern=pattern,
            module_class=module[0],
            source=module[1] or finding.source,
            user=user,
        )
        self.result.findings.append(placed)

    def follow(self, id: TensorId) -> None:
        """Takes the next tensor in dataflow order; of gradients of outputs, it keeps the order."""
        if id.kind != "activation_grad":
            return
        last, self._last = self._last, id
        if last is None or (last.step, last.microbatch) != (id.step, id.microbatch):
            self._user = ""
        elif last.module != id.module:
            self._user = last.module

    def begin_again(self) -> None:
        """The tensors follow once more, and as many are explained again."""
        self._last, self._user, self._explained = None, "", 0

    def _starts_backward(self) -> str:
        """The program's line that starts a backward, which the first gradient comes from; or ""."""
        sites = (site for rank in self.rung.candidate.ranks for site in rank.events_of(Site))
        return next((site.user or site.at for site in sites if site.what == "backward"), "")

    def module(self, name: str) -> tuple[str, str]:
        """The class and source of a module, or of its nearest parent with known code."""
        codes = (module_code(rank.modules, name) for rank in self.rung.candidate.ranks)
        return next((code for code in codes if code[1]), ("", ""))

    def event(self, id: TensorId) -> TensorEvent | None:
        """The candidate's event of a tensor, from its first holder; None if it has none."""
        holders = self.rung.candidate.holders(id)
        return holders[0][1] if holders else None

    def count(self, id: TensorId) -> None:
        """Count a tensor as compared, unless an earlier comparison counted it."""
        if self.result.measured is not None:
            self.result.measured.setdefault(id, None)
        if id not in self.counted:
            self.result.compared[id.kind] += 1

    def has_master(self, id: TensorId) -> bool:
        """Whether both sides recorded a master copy of a parameter."""
        master = msgspec.structs.replace(id, kind="master_param")
        traces = (self.rung.candidate, self.rung.reference)
        return all(trace.holders(master) for trace in traces)


def is_number(tensor: torch.Tensor) -> bool:
    """Whether a tensor is floating-point or complex, not integer or bool."""
    return tensor.is_floating_point() or tensor.is_complex()


def is_finite(tensor: torch.Tensor) -> bool:
    """Whether all values of a tensor are finite."""
    return finite(tensor.numpy())


def not_finite(reference: torch.Tensor) -> str:
    """The message about the values of a reference that are not finite."""
    wrong = ~torch.isfinite(reference)
    first = [int(i) for i in wrong.nonzero()[0]]
    return (
        f"{int(wrong.sum())} of {reference.numel()} values of the reference are not finite, first "
        f"at {first}; nothing can be compared with them"
    )
