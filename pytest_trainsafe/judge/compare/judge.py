"""The compare judge: a candidate's Trace against its reference's, tensor by tensor, in one dtype.

Streams over the reference's tensors in the order of dataflow; in memory is one logical tensor
with its counterparts at a time, and what `values` and `yardstick` keep, up to a fixed size.
Called by the ladder.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Collection, Sequence

import msgspec
import numpy as np
import torch

from pytest_trainsafe.align.dataflow import in_dataflow
from pytest_trainsafe.align.logical import is_cut_over_stages, whole_hash
from pytest_trainsafe.align.merge import Merged
from pytest_trainsafe.align.sketched import Sketched, is_whole
from pytest_trainsafe.core.finding import Finding, Pattern
from pytest_trainsafe.core.tensor_id import INITIAL, TensorId
from pytest_trainsafe.judge.compare.buffers import OWN_DATA, Buffers
from pytest_trainsafe.judge.compare.comparison import Comparison
from pytest_trainsafe.judge.compare.decisions import judge_decision
from pytest_trainsafe.judge.compare.errors import finite, norm
from pytest_trainsafe.judge.compare.explain.evidence import explain_replicas, explain_tensor
from pytest_trainsafe.judge.compare.explain.module_code import module_code
from pytest_trainsafe.judge.compare.explain.numbering import misnumbered
from pytest_trainsafe.judge.compare.guards.narrowed import narrowed
from pytest_trainsafe.judge.compare.model_inputs import Given, ModelInputs
from pytest_trainsafe.judge.compare.rung import Rung
from pytest_trainsafe.judge.compare.sketch.again import gradients_behind
from pytest_trainsafe.judge.compare.sketch.screen import same, screen_tensor
from pytest_trainsafe.judge.compare.sketch.sketches import sketch_of, update_sketch
from pytest_trainsafe.judge.compare.tensor import TensorJudgement, judge_allowed, judge_equal
from pytest_trainsafe.judge.compare.tolerance.allowance import LOW_PRECISION
from pytest_trainsafe.judge.compare.tolerance.loosen import Loosen
from pytest_trainsafe.judge.compare.tolerance.yardstick import (
    Mark,
    Undetermined,
    Yardstick,
    turned,
    without,
)
from pytest_trainsafe.judge.compare.updates import ends
from pytest_trainsafe.judge.compare.values import Values
from pytest_trainsafe.trace.local_places import is_local
from pytest_trainsafe.trace.reader import Trace
from pytest_trainsafe.trace.schema import TensorEvent

__all__ = ["Comparison", "compare"]

#: Kinds that exist once for every parameter: where a candidate records the kind at all, a
#: missing tensor is a finding.
PER_PARAMETER = frozenset({"param", "param_grad", "main_grad"})

#: What the forward of a micro-batch makes.
FORWARD = ("activation", "decision", "loss")

#: Explaining costs a few comparisons; the tensors after these repeat the first one's story.
MOST_EXPLAINED = 12

#: An undetermined element is turned when its update is off by this share of the largest.
TURNED_SHARE = 0.1

#: What merge found that leaves a tensor with values that nobody recorded.
_NOT_WHOLE = frozenset({"layout", "overlap", "hole"})


#: The dtypes of what is counted, not measured: one more or less is wrong at any size.
COUNTS = frozenset(
    ["bool", *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))]
)


def compare(
    rung: Rung, loosen: Sequence[Loosen] = (), screened: Comparison | None = None
) -> Comparison:
    """Compare a rung's candidate with its reference; findings are in the order of dataflow.

    Tensors whose values were not kept are screened by their sketches, which leaves suspects.
    With those recorded again, `screened` is what was found before: only its suspects are judged.
    """
    mismatch = _different_steps(rung)
    if mismatch is not None:
        return Comparison(rung.dtype, [mismatch])
    judge = _Judge(rung, loosen)
    if screened is None:
        judge.annotations()
        numbering = misnumbered(rung.candidate, rung.reference, rung.dtype)
        if numbering is not None:
            judge.add(-1, numbering)
    else:
        judge.take_over(screened)
    for order, id in enumerate(in_dataflow(rung.reference)):
        # What a wrong step leaves behind is wrong afterwards, and tells nothing new.
        if judge.failed_step is not None and id.step > judge.failed_step:
            break
        if screened is None or id in judge.wanted:
            judge.tensor(order, id)
    judge.blame_inputs()
    judge.result.findings.sort(key=lambda finding: finding.order)
    return judge.result


def _different_steps(rung: Rung) -> Finding | None:
    wanted = len(rung.reference.ranks[0].steps)
    odd = next((rank for rank in rung.candidate.ranks if len(rank.steps) != wanted), None)
    if odd is None:
        return None
    return Finding(
        verdict="fail",
        judge="compare",
        check="steps",
        dtype=rung.dtype,
        message=(
            f"the candidate recorded {len(odd.steps)} steps and the reference {wanted} (on rank "
            f"{odd.rank}); a program must take as many steps at every Point, to be compared"
        ),
    )


class _Judge:
    """The state of one comparison."""

    def __init__(self, rung: Rung, loosen: Sequence[Loosen]) -> None:
        self.rung = rung
        self.loosen = loosen
        self.result = Comparison(rung.dtype)
        self.explained = 0
        self.held = set(rung.candidate.ids())
        self.kinds = {id.kind for id in self.held}
        self.modules = {name for rank in rung.candidate.ranks for name in rank.modules}
        self.called = {id.module for id in self.held if id.kind in ("activation", "decision")}
        self.local = {name for rank in rung.candidate.ranks for name in rank.note("local")}
        self.compiled = compiled_modules(rung.candidate)
        self.failed_step: int | None = None
        self.yardstick = Yardstick(rung)
        self.reference = self.yardstick.reference
        self.candidate = Values(rung.candidate)
        self.undetermined: dict[str, Undetermined] = {}
        self.wanted: set[TensorId] = set()
        self.counted: set[TensorId] = set()
        measures = [values.trace for values in self.yardstick.measures]
        self.traces = (rung.candidate, rung.reference, *measures)
        self.inputs = ModelInputs(rung)
        self.buffers = Buffers(rung, self.result.apart)

    def take_over(self, screened: Comparison) -> None:
        """Go on from a comparison that left suspects."""
        self.result = copy.deepcopy(screened)
        self.buffers = Buffers(self.rung, self.result.apart)
        self.counted = gradients_behind(screened.suspects) - {*screened.suspects}
        self.wanted = {*screened.suspects, *self.counted}
        self.result.suspects = []

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
        """Judge one tensor of the reference, or the update it completes."""
        if id.kind == "buffer":
            self.buffer(order, id)
            return
        if id.kind == "unclipped_grad" and self.passed_the_clip(id):
            return
        if id not in self.held:
            self.absent(order, id)
            return
        if id.kind == "decision":
            self.decision(order, id)
            return
        if id.kind == "input":
            self.given(order, id)
            return
        if any(is_cut_over_stages(t, id) for t in (self.rung.reference, self.rung.candidate)):
            self.result.uncovered[id.kind] += 1
            return
        if not all(is_whole(trace, id) for trace in self.traces):
            self.screen(id)
            return
        if self.equal(id) and self.pass_unseen(id):
            return
        expected = self.reference.merged(id)
        if expected.tensor is None or expected.findings:
            message = f"the reference does not fit together: {expected.findings[0].message}"
            self.doubt(order, id, "reference", message)
            return
        reference = expected.tensor
        merged = self.candidate.merged(id, tuple(reference.shape))
        whole = merged.tensor is not None and not any(
            finding.check in _NOT_WHOLE for finding in merged.findings
        )
        passed = False
        if not whole:
            self.count(id)
        elif id.kind in ("param", "master_param"):
            passed = self.parameter(order, id, merged, reference)
        else:
            mark = self.yardstick.mark(id, self.factor(id), reference)
            passed = self.judge(order, id, merged, reference, mark)
        pattern = self.replicas(id, merged, reference) if passed else None
        for finding in merged.findings:
            self.add(order, finding, pattern if finding.check == "replicas" else None)

    def absent(self, order: int, id: TensorId) -> None:
        if is_local(id, self.local):
            self.result.local[id.kind] += 1
            return
        if is_compiled(id, self.compiled):
            self.result.compiled[id.kind] += 1
            return
        called = id.kind in ("activation", "decision")
        expected = id.kind in PER_PARAMETER or (
            called and id.module in self.modules and id.microbatch is not None
        )
        if not (expected and id.kind in self.kinds):
            self.result.uncovered[id.kind] += 1
            return
        self.count(id)
        why = "the parameter has none, or it has another name"
        if called:
            why = "the module is never called"
            if id.module in self.called:
                why = "the module is called less often, or returns something else"
        message = f"the reference has this tensor and no rank of the candidate recorded it: {why}"
        self.fail(order, id, "missing", message)

    def decision(self, order: int, id: TensorId) -> None:
        """Judge what a module chose; the scores it went by are another module's output."""
        place, _, number = id.name.partition(".")
        if place != "output":
            return
        scores = msgspec.structs.replace(id, name=f"scores.{number}" if number else "scores")
        expected, by = self.reference.tensor(id), self.reference.tensor(scores)
        if expected is None or by is None:
            self.doubt(order, id, "reference", "the reference's own parts do not fit together")
            return
        self.count(id)
        merged = self.candidate.merged(id, tuple(expected.shape))
        for finding in merged.findings:
            self.add(order, finding)
        if merged.tensor is None or any(f.check in _NOT_WHOLE for f in merged.findings):
            return
        others = [values.tensor(scores) for values in self.yardstick.measures]
        found = judge_decision(
            merged.tensor, expected, by, [o for o in others if o is not None], self.rung.dtype
        )
        self.result.choices += found.total
        if found.message:
            self.fail(order, id, "decision", found.message, found.margin, found.allowed)
            return
        self.result.turned += found.differ
        if found.blind:
            self.result.insensitive.append(id)

    def given(self, order: int, id: TensorId) -> None:
        """Compare an input of the model; one that differs waits for what the model makes of it."""
        found = Given("agrees") if self.equal(id) else self.inputs.judge(id)
        if found.verdict == "unclear":
            self.result.unclear.append(id)
            return
        self.count(id)
        if found.verdict == "differs":
            self.result.given.append((order, id, found))

    def blame_inputs(self) -> None:
        """Report the inputs that differ where the forward does, too: they come before it."""
        failed = (f.where for f in self.result.findings if f.verdict == "fail")
        wrong = [id for id in failed if id is not None and id.step == self.failed_step]
        forward = {id.microbatch for id in wrong if id.kind in FORWARD}
        seen = any(self.result.compared[kind] for kind in FORWARD)
        for order, id, found in self.result.given:
            if id.step != self.failed_step:
                continue
            if id.microbatch in forward or (wrong and not seen):
                self.fail(order, id, "data", "", pattern=found.pattern)

    def passed_the_clip(self, id: TensorId) -> bool:
        """Whether the reference's clip left a gradient as it was: then what it left is judged.

        A program may take a norm, or clip by a large one, before its gradients are complete.
        """
        after = self.rung.reference.holders(msgspec.structs.replace(id, kind="main_grad"))
        hashes = {rank.rank: event.hash for rank, event in after}
        before = self.rung.reference.holders(id)
        return all(hashes.get(rank.rank) == event.hash for rank, event in before)

    def buffer(self, order: int, id: TensorId) -> None:
        """Judge a buffer on the ranks that owe the reference's value (`buffers.py`)."""
        if is_local(id, self.local):
            self.result.local[id.kind] += 1
            return
        owed = self.buffers.owed(id)
        if owed is None:
            return
        events = [rank.tensors.get(id) for rank in owed.ranks]
        due = self.rung.reference.holders(id)[0][1]
        if not all(events):
            if not owed.otherwise and self.buffers.unchanged(id, owed):
                message = (
                    "the forward of the reference changes this buffer, the candidate's does not"
                )
                self.count(id)
                self.fail(order, id, "missing", message)
            return
        if all(event and not event.layout and event.hash == due.hash for event in events):
            self.count(id)
            return
        own = owed.otherwise or (OWN_DATA if self.buffers.reduced(id) else "")
        if not all(is_whole(trace, id) for trace in self.traces):
            if own:
                self.buffers.leave(id, own)
            else:
                self.result.suspects.append(id)
            return
        reference = self.reference.tensor(id)
        merged = self.buffers.merged(id, owed, due.shape if reference is None else reference.shape)
        if reference is None or merged is None or merged.tensor is None:
            return
        mark = self.yardstick.mark(id, self.factor(id), reference)
        allowed = mark.allowed if mark.finite else None
        numbers = merged.tensor.numpy(), reference.numpy()
        judged = judge_allowed(*numbers, allowed, mark.size, self.rung.dtype)
        right = judged.passed or (not mark.finite and np.array_equal(*numbers, equal_nan=True))
        if own and not (right and not merged.findings):
            self.buffers.leave(id, own)
            return
        self.count(id)
        for finding in merged.findings:
            self.add(order, finding)
        if right:
            if judged.passed and judged.ratio > self.result.worst:
                self.result.worst, self.result.worst_id = judged.ratio, id
        else:
            self.fail_judged(order, id, merged, reference, judged)

    def screen(self, id: TensorId) -> None:
        """Clear a tensor by its sketches, or make it a suspect."""
        if any(event.dtype in COUNTS for _, event in self.rung.reference.holders(id)):
            # Compared exactly, whatever rounding does to others.
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
            # Where ranks hold runs of the master, each answers for its own: the rest are replicas.
            own = own and sketch_of(self.rung.candidate, id) is not None
            cleared = own or not references  # the reference may keep some other relation
        elif ends(self.rung.candidate, id) is None or ends(self.rung.reference, id) is None:
            self.result.uncovered["update"] += 1
            return
        else:
            candidate, expected, *others = (update_sketch(trace, id) for trace in self.traces)
            self.result.moved += expected is not None and bool(expected.values.any())
            value = sketch_of(self.rung.reference, id)
            size = value.norm if value is not None else 0.0
            least = 0.5 * self.yardstick.epsilon(id) * size
            if self.rung.dtype in LOW_PRECISION and expected is not None:
                least = max(least, turned(expected.norm, math.prod(expected.shape)))
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
        """Whether the sketches clear a tensor, which then counts as compared."""
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
        self.result.zero[id.kind] += reference is not None and not reference.values.any()
        if loosened is not None:
            self.result.loosened.append((id, loosened))
        if found.ratio > self.result.worst:
            self.result.worst, self.result.worst_id = found.ratio, id
        if found.allowed >= 1 and id.kind != "update":
            self.result.insensitive.append(id)
        return True

    def parameter(self, order: int, id: TensorId, merged: Merged, reference: torch.Tensor) -> bool:
        """Parameters start equal, and are judged by their updates afterwards; whether it passed."""
        assert merged.tensor is not None
        if not _is_number(reference) or merged.tensor.shape != reference.shape:
            return self.judge(order, id, merged, reference, self.yardstick.mark_exact(id))
        if id.step == INITIAL:
            return self.initial(order, id, merged, reference)
        if id.kind == "param" and self.has_master(id):
            return self.model_copy(order, id)
        return self.update(order, id)

    def initial(self, order: int, id: TensorId, merged: Merged, reference: torch.Tensor) -> bool:
        assert merged.tensor is not None
        if not _finite(reference):
            self.doubt(order, id, "reference-finite", _non_finite(reference))
            return False
        self.count(id)
        wrong = int((merged.tensor != reference).sum())
        if not wrong:
            return True
        difference = norm((merged.tensor - reference).numpy())
        error = difference / (norm(reference.numpy()) or 1.0)
        differ = f"{wrong} of {reference.numel()} values differ"
        if id.kind == "master_param" and self.starts_alike(id):
            message = (
                f"the master copy starts other than the parameter that it is a copy of: {differ} "
                "from the reference's, and the parameters do not. What made the optimizer moved it"
            )
        else:
            message = (
                f"training starts from different parameters: {differ}. Use ctx.initialize(model), "
                "or load the same checkpoint at every Point"
            )
        judged = TensorJudgement("initial", message, error, 0.0, float("inf"))
        pattern = None
        if self.may_explain():
            pattern = explain_tensor(self.rung, id, merged, reference, judged)
        if pattern is not None and pattern.name.startswith("zero"):
            pattern = None  # memory that nobody filled has zeros here and there
        self.fail(order, id, judged.check, message, error, 0.0, pattern)
        return False

    def starts_alike(self, id: TensorId) -> bool:
        """Whether the parameter of a master copy is the reference's before the first step."""
        parameter = msgspec.structs.replace(id, kind="param")
        its, ours = self.reference.tensor(parameter), self.candidate.tensor(parameter)
        if its is None or ours is None:
            return False
        return its.shape == ours.shape and torch.equal(its, ours)

    def model_copy(self, order: int, id: TensorId) -> bool:
        """A parameter with a master copy is that copy, rounded; the copy's update is judged."""
        if not _rounds(self.reference, id):
            return True  # the reference keeps some other relation between the two
        if _rounds(self.candidate, id):
            return True
        message = (
            "the parameter is not its master copy, rounded, as it is in the reference: the copy "
            "back into the model is missing, early, or of another part"
        )
        self.fail(order, id, "master-copy", message)
        return False

    def update(self, order: int, id: TensorId) -> bool:
        candidate = self.candidate.update(id)
        expected = self.reference.update(id)
        if candidate is None or expected is None or candidate.shape != expected.shape:
            self.result.uncovered["update"] += 1
            return True
        self.result.moved += bool(expected.any())
        undetermined = self.undetermined.get(id.path)
        if undetermined is not None and undetermined.mask.shape == expected.shape:
            self.note_turned(id, candidate, expected, undetermined)
            if bool(undetermined.mask.all()):
                self.result.undetermined += 1
                return True
            candidate = without(candidate, undetermined)
            expected = without(expected, undetermined)
        judged_as = msgspec.structs.replace(id, kind="update")
        mark = self.yardstick.mark_update(id, self.factor(judged_as), undetermined, expected)
        return self.judge(order, judged_as, Merged(candidate), expected, mark)

    def note_turned(
        self,
        id: TensorId,
        candidate: torch.Tensor,
        expected: torch.Tensor,
        undetermined: Undetermined,
    ) -> None:
        """Note the first step in which undetermined elements moved another way."""
        if self.result.turned_in is not None or not expected.numel():
            return
        apart = torch.where(undetermined.mask, (candidate - expected).abs(), 0.0)
        if float(apart.max()) > TURNED_SHARE * float(expected.abs().max()):
            self.result.turned_in = id.step

    def judge(
        self,
        order: int,
        id: TensorId,
        merged: Merged,
        reference: torch.Tensor,
        mark: Mark,
    ) -> bool:
        """Judge values by the measured rounding; whether they passed."""
        assert merged.tensor is not None
        if not mark.finite:
            self.doubt(order, id, "reference-finite", _non_finite(reference))
            return False
        if merged.tensor.shape == reference.shape and reference.numel() == 0:
            return True
        if mark.unmeasured:
            self.unmeasured(order, id)
            return False
        judged = judge_allowed(
            merged.tensor.numpy(),
            reference.numpy(),
            mark.allowed,
            mark.size,
            self.rung.dtype,
            # One turned element is more than a slice of an update is allowed.
            whole=id.kind == "update" and self.rung.dtype in LOW_PRECISION,
        )
        self.note(id, mark, judged, merged.tensor)
        if judged.passed:
            self.precision(order, id, merged.tensor, reference)
            return True
        self.fail_judged(order, id, merged, reference, judged)
        return False

    def precision(
        self, order: int, id: TensorId, value: torch.Tensor, reference: torch.Tensor
    ) -> None:
        """Doubt a tensor that passes, but with less precision than it is stored with."""
        dtype = narrowed(self.rung, id, value, reference)
        if dtype is not None:
            event = self.event(id)
            assert event is not None, id
            message = (
                f"every value fits {dtype} exactly, though the tensor is stored as {event.dtype} "
                f"and the reference's values need that: it is accumulated, reduced or copied in "
                f"{dtype}, with an error that the rounding of {self.rung.dtype} hides"
            )
            self.doubt(order, id, "narrowed", message)

    def equal(self, id: TensorId) -> bool:
        """Whether every rank holds the reference's own bits of a tensor, by its hash."""
        reference, candidate = self.reference.trace, self.candidate.trace
        its, ours = reference.holders(id), candidate.holders(id)
        if not (its and ours) or its[0][1].hash != ours[0][1].hash:
            return False
        known = whole_hash(reference, id)
        return known is not None and known == whole_hash(candidate, id)

    def pass_unseen(self, id: TensorId) -> bool:
        """Pass a tensor that is equal, without loading it; False where it must be looked at."""
        if id.kind not in ("param", "master_param"):
            return self.pass_equal(id, self.yardstick.mark(id, self.factor(id)))
        if id.step == INITIAL:
            return self.pass_equal(id, self.yardstick.mark_exact(id), measured=False)
        both = ends(self.reference.trace, id)
        if (id.kind == "param" and self.has_master(id)) or both is None:
            return False
        if both != ends(self.candidate.trace, id) or not all(map(self.equal, both)):
            return False
        undetermined = self.undetermined.get(id.path)
        if undetermined is not None and bool(undetermined.mask.all()):
            return False
        judged_as = msgspec.structs.replace(id, kind="update")
        mark = self.yardstick.mark_update(id, self.factor(judged_as), undetermined)
        if mark is None or not self.pass_equal(judged_as, mark):
            return False
        self.result.moved += mark.moves
        return True

    def pass_equal(self, id: TensorId, mark: Mark, measured: bool = True) -> bool:
        """Note that a tensor equals its reference, unless something of that is in doubt."""
        if not mark.finite or (measured and mark.unmeasured) or not mark.elements:
            return False
        if measured:
            self.note(id, mark, judge_equal(mark.allowed, mark.size))
        else:
            self.count(id)
        return True

    def note(
        self,
        id: TensorId,
        mark: Mark,
        judged: TensorJudgement,
        candidate: torch.Tensor | None = None,
    ) -> None:
        """Take a judgement into the result; `candidate` is None where it equals its reference."""
        loosened = self.loosening(id)
        if loosened is not None:
            self.result.loosened.append((id, loosened))
        if mark.undetermined is not None:
            before = self.undetermined.get(id.path)
            own = mark.rounding_of_zero(candidate) if candidate is not None else None
            self.undetermined[id.path] = Undetermined.of(mark.undetermined, id.step, before, own)
        self.count(id)
        self.result.zero[id.kind] += mark.size == 0.0
        if judged.ratio > self.result.worst:
            self.result.worst, self.result.worst_id = judged.ratio, id
        if judged.passed and judged.allowed >= 1 and id.kind != "update":
            self.result.insensitive.append(id)

    def loosening(self, id: TensorId) -> Loosen | None:
        return next((entry for entry in self.loosen if entry.matches(id)), None)

    def factor(self, id: TensorId) -> float:
        loosened = self.loosening(id)
        return loosened.factor if loosened is not None else 1.0

    def replicas(self, id: TensorId, merged: Merged, reference: torch.Tensor) -> Pattern | None:
        """What the odd replicas of a tensor are whose first replica is right."""
        odd = any(finding.check == "replicas" for finding in merged.findings)
        if not odd or not _is_number(reference) or not self.may_explain():
            return None
        return explain_replicas(self.rung, id, merged, reference, self.yardstick.others(id))

    def may_explain(self) -> bool:
        self.explained += 1
        return self.explained <= MOST_EXPLAINED

    def unmeasured(self, order: int, id: TensorId) -> None:
        message = (
            "no rounding was measured for this tensor: the runs that measure it did not record "
            "it, or gave values that are not finite"
        )
        self.doubt(order, id, "measured", message)

    def doubt(self, order: int, id: TensorId, check: str, message: str) -> None:
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
    ) -> None:
        pattern = None
        if judged.check != "shape" and self.may_explain():
            pattern = explain_tensor(self.rung, id, merged, reference, judged)
        event = self.event(id)
        message = judged.message
        if judged.check == "shape" and event is not None:
            message += f" (layout from {event.layout_source})"
        self.fail(order, id, judged.check, message, judged.error, judged.allowed, pattern)

    def fail(
        self,
        order: int,
        id: TensorId,
        check: str,
        message: str,
        error: float | None = None,
        allowed: float | None = None,
        pattern: Pattern | None = None,
    ) -> None:
        finding = Finding(
            verdict="fail",
            judge="compare",
            check=check,
            message=message,
            where=id,
            error=error,
            allowed=allowed,
        )
        self.add(order, finding, pattern)

    def add(self, order: int, finding: Finding, pattern: Pattern | None = None) -> None:
        """Keep a finding, with its place in dataflow and its module as the candidate has it."""
        where = finding.where
        module = self.module(where) if where is not None else ("", "")
        if finding.verdict == "fail" and where is not None:
            self.failed_step = where.step
        placed = msgspec.structs.replace(
            finding,
            order=order,
            dtype=self.rung.dtype,
            pattern=pattern,
            module_class=module[0],
            source=module[1],
        )
        self.result.findings.append(placed)

    def module(self, id: TensorId) -> tuple[str, str]:
        """The class and source of a tensor's module, or of the nearest around it."""
        codes = (module_code(rank.modules, id.module) for rank in self.rung.candidate.ranks)
        return next((code for code in codes if code[1]), ("", ""))

    def event(self, id: TensorId) -> TensorEvent | None:
        holders = self.rung.candidate.holders(id)
        return holders[0][1] if holders else None

    def count(self, id: TensorId) -> None:
        if id not in self.counted:
            self.result.compared[id.kind] += 1

    def has_master(self, id: TensorId) -> bool:
        master = msgspec.structs.replace(id, kind="master_param")
        traces = (self.rung.candidate, self.rung.reference)
        return all(trace.holders(master) for trace in traces)


def _rounds(values: Values, id: TensorId) -> bool:
    """Whether a parameter is its master copy, rounded to the parameter's dtype."""
    value = values.tensor(id)
    master = values.tensor(msgspec.structs.replace(id, kind="master_param"))
    if value is None or master is None or master.shape != value.shape:
        return False
    dtype: torch.dtype = getattr(torch, values.trace.holders(id)[0][1].dtype)
    return torch.equal(master.to(dtype).to(value.dtype), value)


def compiled_modules(trace: Trace) -> frozenset[str]:
    """The modules that ran inside what torch.compile compiled, on any rank: no hook saw them."""
    return frozenset(name for rank in trace.ranks for name in rank.note("compiled"))


def is_compiled(id: TensorId, compiled: Collection[str]) -> bool:
    """Whether a tensor is what flows between modules inside a compiled region."""
    return id.kind in ("activation", "activation_grad", "decision") and id.module in compiled


def _is_number(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def _finite(tensor: torch.Tensor) -> bool:
    return finite(tensor.numpy())


def _non_finite(reference: torch.Tensor) -> str:
    wrong = ~torch.isfinite(reference)
    first = [int(i) for i in wrong.nonzero()[0]]
    return (
        f"{int(wrong.sum())} of {reference.numel()} values of the reference are not finite, first "
        f"at {first}; nothing can be compared with them"
    )
