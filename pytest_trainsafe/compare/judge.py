"""The compare judge: a candidate's Trace against its reference's, tensor by tensor, in one dtype.

Streams over the reference's tensors in the order of dataflow; in memory is one logical tensor
with its counterparts at a time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import msgspec
import torch

from pytest_trainsafe.align.logical import logical_tensor
from pytest_trainsafe.align.merge import Merged
from pytest_trainsafe.compare.errors import norm
from pytest_trainsafe.compare.loosen import Loosen
from pytest_trainsafe.compare.patterns import Wrong, explain
from pytest_trainsafe.compare.rung import Rung
from pytest_trainsafe.compare.tensor import TensorJudgement, judge_tensor
from pytest_trainsafe.finding import Finding
from pytest_trainsafe.trace.reader import Trace
from pytest_trainsafe.trace.schema import INITIAL, TensorEvent, TensorId

#: Kinds that exist once for every parameter: where a candidate records the kind at all, a
#: missing tensor is a finding.
PER_PARAMETER = frozenset({"param", "param_grad", "main_grad"})

#: Explaining costs a few comparisons; the tensors after these repeat the first one's story.
MOST_EXPLAINED = 12

#: An element of a gradient below this multiple of its share of the allowance has no certain sign.
UNDETERMINED = 2.0


@dataclass(slots=True)
class Comparison:
    """What comparing one rung found.

    `compared` and `wrong` count tensors by kind.  `worst` is the largest error over its
    allowance of all tensors, at `worst_id`.  `uncovered` counts the reference's tensors that
    have no counterpart, by kind.  `loosened` lists tensors judged with a user's factor.
    """

    dtype: str
    findings: list[Finding] = field(default_factory=list)
    compared: Counter[str] = field(default_factory=Counter)
    wrong: Counter[str] = field(default_factory=Counter)
    uncovered: Counter[str] = field(default_factory=Counter)
    worst: float = 0.0
    worst_id: TensorId | None = None
    insensitive: list[TensorId] = field(default_factory=list)
    moved: int = 0
    loosened: list[tuple[TensorId, Loosen]] = field(default_factory=list)

    @property
    def failed(self) -> bool:
        return any(finding.verdict == "fail" for finding in self.findings)


def compare(rung: Rung, loosen: Sequence[Loosen] = ()) -> Comparison:
    """Compare a rung's candidate with its reference; findings are in the order of dataflow."""
    mismatch = _different_steps(rung)
    if mismatch is not None:
        return Comparison(rung.dtype, [mismatch])
    judge = _Judge(rung, loosen)
    judge.annotations()
    for order, id in enumerate(rung.reference.ids()):
        # What a wrong step leaves behind is wrong afterwards, and tells nothing new.
        if judge.failed_step is not None and id.step > judge.failed_step:
            break
        judge.tensor(order, id)
    judge.result.findings.sort(key=lambda finding: finding.order)
    return judge.result


def _different_steps(rung: Rung) -> Finding | None:
    counts = [len(trace.ranks[0].steps) for trace in (rung.candidate, rung.reference)]
    if counts[0] == counts[1]:
        return None
    return Finding(
        verdict="fail",
        judge="compare",
        check="steps",
        dtype=rung.dtype,
        message=(
            f"the candidate recorded {counts[0]} steps and the reference {counts[1]}; a program "
            "must take the same number of steps at every Point to be compared"
        ),
    )


class _Judge:
    def __init__(self, rung: Rung, loosen: Sequence[Loosen]) -> None:
        self.rung = rung
        self.loosen = loosen
        self.result = Comparison(rung.dtype)
        self.explained = 0
        self.held = set(rung.candidate.ids())
        self.kinds = {id.kind for id in self.held}
        self.modules = {name for rank in rung.candidate.ranks for name in rank.modules}
        self.failed_step: int | None = None
        self.shadow = rung.usable_shadow()
        self.undetermined: dict[tuple[str, int], torch.Tensor] = {}

    def annotations(self) -> None:
        """An annotation that matches nothing on any rank is a mistake, not a choice."""
        ranks = self.rung.candidate.ranks
        unmatched = set.intersection(*(set(rank.note("unmatched_annotation")) for rank in ranks))
        for pattern in sorted(unmatched):
            message = (
                f"the annotation {pattern} matches nothing in the candidate's model; correct its "
                "pattern (fnmatch, of a full dotted name or a suffix of it) or remove it"
            )
            finding = Finding(verdict="fail", judge="align", check="annotation", message=message)
            self.add(-1, finding)

    def tensor(self, order: int, id: TensorId) -> None:
        """Judge one tensor of the reference, and the update it completes."""
        if id not in self.held:
            self.absent(order, id)
            return
        reference = logical_tensor(self.rung.reference, id).tensor
        assert reference is not None, id
        merged = logical_tensor(self.rung.candidate, id, tuple(reference.shape))
        for finding in merged.findings:
            self.add(order, finding)
        if id.kind in ("param", "master_param"):
            self.value(order, id, merged, reference)
        else:
            others = self.others(id)
            self.judge(order, id, merged, reference, others, self.earlier(id))

    def absent(self, order: int, id: TensorId) -> None:
        expected = id.kind in PER_PARAMETER or (
            id.kind == "activation" and id.module in self.modules and id.microbatch is not None
        )
        if not (expected and id.kind in self.kinds):
            self.result.uncovered[id.kind] += 1
            return
        self.result.wrong[id.kind] += 1
        message = (
            "the reference has this tensor and no rank of the candidate recorded it: the "
            + ("module was not called" if id.kind == "activation" else "parameter has none")
            + ", or it has another name"
        )
        self.fail(order, id, "missing", message)

    def value(self, order: int, id: TensorId, merged: Merged, reference: torch.Tensor) -> None:
        """Parameters start equal, and are judged by their updates afterwards.

        A parameter moves little in a step, so an error of its update drowns in its value.
        """
        if not bool(torch.isfinite(reference).all()):
            self.add(order, _unusable_reference(id, reference))
            return
        if id.step == INITIAL:
            if merged.tensor is not None and merged.tensor.shape == reference.shape:
                self.count(id)
                if not torch.equal(merged.tensor, reference):
                    wrong = int((merged.tensor != reference).sum())
                    self.fail(
                        order,
                        id,
                        "initial",
                        f"training starts from different parameters: {wrong} of "
                        f"{reference.numel()} values differ. Use ctx.initialize(model), or load "
                        "the same checkpoint at every Point",
                        error=norm((merged.tensor - reference).numpy()) / norm(reference.numpy()),
                    )
            elif merged.tensor is not None:
                self.judge(order, id, merged, reference, [], None)
            return
        if id.kind == "param" and self.has_master(id):
            return
        candidate, expected = (
            _update(trace, id) for trace in (self.rung.candidate, self.rung.reference)
        )
        if candidate is None or expected is None or candidate.shape != expected.shape:
            return
        if expected.numel() and float(expected.abs().max()) > 0:
            self.result.moved += 1
        others = [u for trace in self.other_traces() if (u := _update(trace, id)) is not None]
        undetermined = self.undetermined.get((id.path, id.step))
        if undetermined is not None and undetermined.shape == expected.shape:
            candidate, expected, *others = (
                values.masked_fill(undetermined, 0) for values in (candidate, expected, *others)
            )
        update = msgspec.structs.replace(id, kind="update")
        # A stored value is rounded, and so is the difference of two of them.
        least = 0.5 * _epsilon(self.rung.reference, id) * norm(reference.numpy())
        self.judge(order, update, Merged(candidate), expected, others, None, least)

    def judge(
        self,
        order: int,
        id: TensorId,
        merged: Merged,
        reference: torch.Tensor,
        others: list[torch.Tensor],
        earlier: TensorId | None,
        least: float = 0.0,
    ) -> None:
        if merged.tensor is None:
            self.result.wrong[id.kind] += 1
            return
        if not bool(torch.isfinite(reference).all()):
            self.add(order, _unusable_reference(id, reference))
            return
        if merged.tensor.numel() == 0 and reference.numel() == 0:
            return
        loosened = next((entry for entry in self.loosen if entry.matches(id)), None)
        if loosened is not None:
            self.result.loosened.append((id, loosened))
        factor = loosened.factor if loosened is not None else 1.0
        judged = judge_tensor(
            merged.tensor.numpy(),
            reference.numpy(),
            [other.numpy() for other in others],
            self.rung.dtype,
            loosened=factor,
            least=least,
        )
        if id.kind == "main_grad":
            self.note_undetermined(id, reference, judged)
        self.count(id)
        if judged.ratio > self.result.worst:
            self.result.worst, self.result.worst_id = judged.ratio, id
        if judged.passed:
            if judged.allowed >= 1 and id.kind != "update":
                self.result.insensitive.append(id)
            return
        self.result.wrong[id.kind] += 1
        pattern = None
        if self.explained < MOST_EXPLAINED and judged.check not in ("shape", "non-finite"):
            self.explained += 1
            pattern = explain(self.wrong(id, merged, reference, judged, earlier))
        event = self.event(id)
        self.fail(
            order,
            id,
            judged.check,
            judged.message
            + (
                f" (layout from {event.layout_source})" if event and judged.check == "shape" else ""
            ),
            error=judged.error,
            allowed=judged.allowed,
            pattern=pattern,
        )

    def note_undetermined(
        self, id: TensorId, gradient: torch.Tensor, judged: TensorJudgement
    ) -> None:
        """Mark the elements whose gradient rounding may turn around.

        Adam's step is close to the gradient's sign: where the gradient is within rounding of
        zero, the update may have either sign in a correct program, in this step and, through
        the moments, in later ones.
        """
        if not gradient.is_floating_point() or not gradient.numel():
            return
        allowed = judged.allowed * norm(gradient.numpy()) / gradient.numel() ** 0.5
        marked = gradient.abs() <= UNDETERMINED * allowed
        before = self.undetermined.get((id.path, id.step - 1))
        self.undetermined[id.path, id.step] = marked if before is None else marked | before

    def wrong(
        self,
        id: TensorId,
        merged: Merged,
        reference: torch.Tensor,
        judged: TensorJudgement,
        earlier: TensorId | None,
    ) -> Wrong:
        assert merged.tensor is not None
        before = None
        if earlier is not None:
            before = logical_tensor(self.rung.reference, earlier).tensor
        event = self.event(id)
        microbatches = sum(
            {
                rank.coordinates["dp"]: rank.steps[0].microbatches
                for rank in self.rung.candidate.ranks
            }.values()
        )
        return Wrong(
            value=merged.tensor,
            reference=reference,
            parts=[] if id.kind == "update" else merged.parts,
            sizes=self.rung.candidate.sizes,
            factors={"microbatches": microbatches},
            allowed=judged.allowed * (norm(reference.numpy()) or 1.0),
            kind=id.kind,
            dtype=event.dtype if event else self.rung.dtype,
            earlier=before,
        )

    def fail(
        self,
        order: int,
        id: TensorId,
        check: str,
        message: str,
        **evidence: object,
    ) -> None:
        module = self.module(id)
        finding = Finding(
            verdict="fail",
            judge="compare",
            check=check,
            message=message,
            where=id,
            dtype=self.rung.dtype,
            module_class=module[0],
            source=module[1],
            order=order,
        )
        self.failed_step = id.step
        self.result.findings.append(msgspec.structs.replace(finding, **evidence))

    def add(self, order: int, finding: Finding) -> None:
        where = finding.where
        module = self.module(where) if where is not None else ("", "")
        if finding.verdict == "fail" and where is not None:
            self.failed_step = where.step
        self.result.findings.append(
            msgspec.structs.replace(
                finding,
                order=order,
                dtype=self.rung.dtype,
                module_class=module[0],
                source=module[1],
            )
        )

    def module(self, id: TensorId) -> tuple[str, str]:
        """The class and source of a tensor's module, as the candidate has it."""
        for rank in self.rung.candidate.ranks:
            if id.module in rank.modules:
                return rank.modules[id.module].cls, rank.modules[id.module].source
        return "", ""

    def event(self, id: TensorId) -> TensorEvent | None:
        recorded = msgspec.structs.replace(id, kind="param") if id.kind == "update" else id
        holders = self.rung.candidate.holders(recorded)
        return holders[0][1] if holders else None

    def count(self, id: TensorId) -> None:
        self.result.compared[id.kind] += 1

    def other_traces(self) -> Iterator[Trace]:
        if self.rung.perturbed is not None:
            yield self.rung.perturbed
        if self.shadow is not None:
            yield self.shadow

    def others(self, id: TensorId) -> list[torch.Tensor]:
        found = []
        for trace in self.other_traces():
            if trace.holders(id):
                tensor = logical_tensor(trace, id).tensor
                if tensor is not None:
                    found.append(tensor)
        return found

    def earlier(self, id: TensorId) -> TensorId | None:
        before = msgspec.structs.replace(id, step=id.step - 1)
        return before if self.rung.reference.holders(before) else None

    def has_master(self, id: TensorId) -> bool:
        master = msgspec.structs.replace(id, kind="master_param")
        return bool(self.rung.candidate.holders(master)) and bool(
            self.rung.reference.holders(master)
        )


def _update(trace: Trace, id: TensorId) -> torch.Tensor | None:
    """What a step added to a parameter: the master copy's move, where the trace has one."""
    # A float64 shadow keeps no master copies.
    after = id if trace.holders(id) else msgspec.structs.replace(id, kind="param")
    before = msgspec.structs.replace(after, step=id.step - 1)
    if not trace.holders(before):
        before = msgspec.structs.replace(before, kind="param")
    if not trace.holders(after) or not trace.holders(before):
        return None
    new, old = logical_tensor(trace, after).tensor, logical_tensor(trace, before).tensor
    if new is None or old is None or new.shape != old.shape or not new.is_floating_point():
        return None
    return new - old


def _epsilon(trace: Trace, id: TensorId) -> float:
    """The spacing of numbers next to 1 in the dtype in which a tensor is stored."""
    dtype: torch.dtype = getattr(torch, trace.holders(id)[0][1].dtype)
    return torch.finfo(dtype).eps


def _unusable_reference(id: TensorId, reference: torch.Tensor) -> Finding:
    wrong = ~torch.isfinite(reference)
    first = [int(i) for i in wrong.nonzero()[0]]
    return Finding(
        verdict="inconclusive",
        judge="compare",
        check="reference-finite",
        where=id,
        message=(
            f"{int(wrong.sum())} of {reference.numel()} values of the reference are not finite, "
            f"first at {first}; nothing can be compared with them"
        ),
    )
