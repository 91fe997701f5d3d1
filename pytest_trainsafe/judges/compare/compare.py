"""Compares a candidate's Trace with its reference's at one rung, tensor by tensor.

It streams the reference's tensors in dataflow order.  Memory holds one logical tensor with its
counterparts at a time, and the bounded caches of `values` and `tolerances`.  Called by
`judges.compare.ladder.ladder`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Sequence

import msgspec
import numpy as np
import torch

from pytest_trainsafe.align.dataflow import in_dataflow
from pytest_trainsafe.align.logical import is_cut_over_stages, whole_hash
from pytest_trainsafe.align.merge import Merged
from pytest_trainsafe.align.updates import ends
from pytest_trainsafe.core.finding import Finding
from pytest_trainsafe.core.layout import Partial
from pytest_trainsafe.core.tensor_id import INITIAL, TensorId
from pytest_trainsafe.judges.compare.comparison import Comparison
from pytest_trainsafe.judges.compare.explain.numbering import misnumbered
from pytest_trainsafe.judges.compare.explain.on_some_ranks import on_some_ranks
from pytest_trainsafe.judges.compare.kinds.buffers import OWN_DATA, Buffers
from pytest_trainsafe.judges.compare.kinds.dealt import Dealt
from pytest_trainsafe.judges.compare.kinds.decisions import judge_decision
from pytest_trainsafe.judges.compare.kinds.model_inputs import InputJudgement, ModelInputs
from pytest_trainsafe.judges.compare.kinds.reduced_in_step import reduced_in_step
from pytest_trainsafe.judges.compare.kinds.terms import are_confirmed, summed_over
from pytest_trainsafe.judges.compare.parameters import Parameters
from pytest_trainsafe.judges.compare.rerecord import gradients_behind
from pytest_trainsafe.judges.compare.rung import RungTraces
from pytest_trainsafe.judges.compare.tensors.tensor import judge_allowed, judge_equal
from pytest_trainsafe.judges.compare.tolerance.reference_tolerances import (
    Tolerance,
)
from pytest_trainsafe.judges.loosen import Loosen
from pytest_trainsafe.trace.local_key_paths import is_local
from pytest_trainsafe.trace.reader import Trace

__all__ = ["Comparison", "compare"]

#: Kinds that exist once per parameter.  If a candidate records one tensor of such a kind, a tensor
#: of that kind that it lacks is a finding.
PER_PARAMETER = frozenset({"param", "param_grad", "main_grad"})

#: The kinds that the forward of a micro-batch produces.
FORWARD = ("activation", "decision", "loss")

#: The findings of a merge after which a tensor is not judged: its parts do not fit together.
_NOT_WHOLE = frozenset({"layout", "overlap", "hole"})


def compare(
    rung: RungTraces, loosen: Sequence[Loosen] = (), screened: Comparison | None = None
) -> Comparison:
    """Compare the candidate of `rung`, the traces in one dtype, with the reference.

    The findings of the result are in dataflow order.

    Tensors without recorded values are screened by their sketches (random projections); those that
    may differ become suspects.  After a second recording, which keeps the values of the suspects,
    `screened` is the result of the first comparison, and only its suspects are judged.
    """
    mismatch = _different_steps(rung)
    if mismatch is not None:
        return Comparison(rung.dtype, [mismatch])
    judge = _Comparing(rung, loosen)
    if screened is None:
        numbering = misnumbered(rung.candidate, rung.reference, rung.dtype)
        if numbering is not None:
            judge.add(-1, numbering)
    else:
        judge.take_over(screened)
    for order, id in enumerate(in_dataflow(rung.reference)):
        # Later steps start from wrong values, so their errors prove nothing new.
        if judge.failed_step is not None and id.step > judge.failed_step:
            break
        judge.follow(id)
        if screened is None or id in judge.wanted:
            judge.tensor(order, id)
    judge.blame_inputs()
    judge.blame_terms()
    judge.result.findings.sort(key=lambda finding: finding.order)
    return judge.result


def _are_replicas(merged: Merged) -> bool:
    """Whether the parts of a tensor are replicas or shards, and not terms of a sum."""
    return not any(isinstance(p, Partial) for part in merged.parts for p in part.layout)


def _different_steps(rung: RungTraces) -> Finding | None:
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
            f"the candidate recorded {len(odd.steps)} steps on rank {odd.rank}, but the reference "
            f"recorded {wanted}; a program must take the same number of steps at every Point"
        ),
    )


class _Comparing(Parameters):
    """One comparison in progress."""

    def __init__(self, rung: RungTraces, loosen: Sequence[Loosen]) -> None:
        super().__init__(rung, loosen)
        self.held = set(rung.candidate.ids())
        self.kinds = {id.kind for id in self.held}
        self.modules = {name for rank in rung.candidate.ranks for name in rank.modules}
        self.called = {id.module for id in self.held if id.kind in ("activation", "decision")}
        self.local = {name for rank in rung.candidate.ranks for name in rank.note("local")}
        self.compiled = compiled_modules(rung.candidate)
        self.microbatches = {id.microbatch for id in self.held if id.kind == "param_grad"}
        self.wanted: set[TensorId] = set()
        both = rung.reference, rung.candidate
        self.staged = [trace for trace in both if trace.sizes["pp"] > 1]
        self.sketched = frozenset[TensorId]().union(*(trace.sketched for trace in self.traces))
        self.inputs = ModelInputs(rung)
        self.dealt = Dealt(rung.candidate)
        self.buffers = Buffers(rung, self.result.apart)
        self.blaming = False

    def take_over(self, screened: Comparison) -> None:
        """Start from the results of `screened`, an earlier comparison, to judge its suspects.

        Suspects are tensors that a comparison of sketches (random projections) left undecided.
        """
        self.result = copy.deepcopy(screened)
        self.buffers = Buffers(self.rung, self.result.apart)
        self.counted = gradients_behind(screened.suspects) - {*screened.suspects}
        self.wanted = {*screened.suspects, *self.counted}
        self.result.suspects = []

    def tensor(self, order: int, id: TensorId) -> None:
        """Judge one tensor of the reference; for a parameter after a step, judge its update."""
        if id.kind == "buffer":
            self.buffer(order, id)
            return
        if id.kind == "unclipped_grad" and self.passed_the_clip(id):
            return
        if id not in self.held:
            self.absent(order, id)
            return
        if id in self.dealt:
            self.result.dealt[id.path] += 1
            return
        if id.kind == "decision":
            self.decision(order, id)
            return
        if id.kind == "input":
            self.given(order, id)
            return
        if self.staged and any(is_cut_over_stages(trace, id) for trace in self.staged):
            self.result.uncovered[id.kind] += 1
            return
        if id in self.sketched:
            self.screen(id)
            return
        if self.equal(id) and self.pass_unseen(id):
            return
        expected = self.reference.merged(id)
        if expected.tensor is None or expected.findings:
            message = f"the parts of the reference cannot be merged: {expected.findings[0].message}"
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
            tolerance = self.tolerances.tolerance(id, self.factor(id), reference)
            passes = self.passing(reference, tolerance)
            merged = self.reduced(id, merged, passes)
            if axes := () if self.blaming else summed_over(self.rung, id, merged, passes):
                self.result.terms[id] = axes
                return
            passed = self.judge(order, id, merged, reference, tolerance)
        odd = self.replicas(id, merged, reference) if passed else None
        for finding in merged.findings:
            pattern = odd if finding.check == "replicas" else None
            if passed and finding.check == "missing" and _are_replicas(merged):
                pattern = on_some_ranks(id, merged)
            self.add(order, finding, pattern)

    def reduced(
        self, id: TensorId, merged: Merged, passes: Callable[[torch.Tensor], bool] | None
    ) -> Merged:
        """A gradient as the optimizer's step reduces it, or `merged` if the step does not."""
        found = passes and reduced_in_step(self.rung.candidate, id, merged, passes)
        if not found:
            return merged
        self.result.in_step[id.path] = found.how
        return found.merged

    def blame_terms(self) -> None:
        """Judge the gradients that are terms of a sum, unless all that follows is right."""
        failed = (f.where for f in self.result.findings if f.verdict == "fail")
        wrong = [id for id in failed if id is not None and id.step == self.failed_step]
        self.blaming = not are_confirmed(self.rung, wrong, self.result.compared, self.local)
        if not self.blaming:
            for id in self.result.terms:
                self.count(id)
            return
        held, self.result.terms = self.result.terms, {}
        self.begin_again()  # these come first in the report
        for order, id in enumerate(in_dataflow(self.rung.reference) if held else ()):
            if self.failed_step is not None and id.step > self.failed_step:
                break
            self.follow(id)
            if id in held:
                self.tensor(order, id)

    def absent(self, order: int, id: TensorId) -> None:
        """Record a tensor that the candidate lacks: as a finding, or in a count."""
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
        lacks = "is missing there" if id.kind == "param" else "has none there"
        why = f"the parameter {lacks}, or has another name"
        if id.kind == "param_grad" and any(
            msgspec.structs.replace(id, microbatch=each) in self.held for each in self.microbatches
        ):
            why = (
                "it has this gradient of other micro-batches, so the backward of this micro-batch "
                "does not run, or does not reach the parameter"
            )
        if id.kind == "main_grad" and any(
            msgspec.structs.replace(id, kind="param_grad", microbatch=each) in self.held
            for each in self.microbatches
        ):
            why = (
                "its micro-batch gradients are there, but it has none when the optimizer steps: "
                "the reduction that makes it does not run, as while a wrapper does not "
                "synchronize, or it is cleared before the step"
            )
        if called:
            why = "the module is never called"
            if id.module in self.called:
                what = "is given" if id.name.split(".", 1)[0] == "input" else "returns"
                why = f"the module is called less often, or {what} different values"
        message = f"the reference has this tensor, but no rank of the candidate recorded it: {why}"
        self.fail(order, id, "missing", message)

    def decision(self, order: int, id: TensorId) -> None:
        """Judge the options that a module chose by their scores, such as the experts of a router.

        A choice may differ from the reference's only if the reference's scores, which are recorded
        too, show that rounding can change it.  If `id` names scores, nothing is judged.
        """
        place, _, number = id.name.partition(".")
        if place != "output":
            return
        scores = msgspec.structs.replace(id, name=f"scores.{number}" if number else "scores")
        expected, by = self.reference.tensor(id), self.reference.tensor(scores)
        if expected is None or by is None:
            self.doubt(order, id, "reference", "the parts of the reference cannot be merged")
            return
        self.count(id)
        merged = self.candidate.merged(id, tuple(expected.shape))
        for finding in merged.findings:
            self.add(order, finding)
        if merged.tensor is None or any(f.check in _NOT_WHOLE for f in merged.findings):
            return
        others = [values.tensor(scores) for values in self.tolerances.measures]
        found = judge_decision(
            merged.tensor, expected, by, [o for o in others if o is not None], self.rung.dtype
        )
        self.result.choices += found.total
        if found.message:
            self.fail(order, id, "decision", found.message, found.margin, found.allowed)
            return
        self.result.flipped += found.differ
        if found.blind:
            self.result.insensitive.append(id)

    def given(self, order: int, id: TensorId) -> None:
        """Compare a model input.  A difference is a finding only if the forward is wrong too."""
        found = InputJudgement("agrees") if self.equal(id) else self.inputs.judge(id)
        if found.verdict == "unclear":
            self.result.unclear.append(id)
            return
        self.count(id)
        if found.verdict == "differs":
            self.result.given.append((order, id, found))

    def blame_inputs(self) -> None:
        """Report the inputs that differ in micro-batches whose forward is wrong."""
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
        """Whether clipping left a gradient of the reference unchanged.

        In this case only the main gradient is judged, and not the gradient before clipping.  The
        latter may be incomplete even in a correct program: the program may compute the norm, or
        clip with a limit that is never reached, before the gradient is complete.
        """
        after = self.rung.reference.holders(msgspec.structs.replace(id, kind="main_grad"))
        hashes = {rank.rank: event.hash for rank, event in after}
        before = self.rung.reference.holders(id)
        return all(hashes.get(rank.rank) == event.hash for rank, event in before)

    def buffer(self, order: int, id: TensorId) -> None:
        """Judge a buffer on the ranks that must have the reference's value (`buffers.py`)."""
        if is_local(id, self.local):
            self.result.local[id.kind] += 1
            return
        compared_on = self.buffers.compared_ranks(id)
        if compared_on is None:
            return
        events = [rank.tensors.get(id) for rank in compared_on.ranks]
        due = self.rung.reference.holders(id)[0][1]
        if not all(events):
            if not compared_on.otherwise and self.buffers.unchanged(id, compared_on):
                message = (
                    "the reference's forward changes this buffer, but the candidate's does not"
                )
                self.count(id)
                self.fail(order, id, "missing", message)
            return
        if all(event and not event.layout and event.hash == due.hash for event in events):
            self.count(id)
            return
        own = compared_on.otherwise or (OWN_DATA if self.buffers.reduced(id) else "")
        if id in self.sketched:
            if own:
                self.buffers.leave(id, own)
            else:
                self.result.suspects.append(id)
            return
        reference = self.reference.tensor(id)
        merged = self.buffers.merged(
            id, compared_on, due.shape if reference is None else reference.shape
        )
        if reference is None or merged is None or merged.tensor is None:
            return
        if merged.whole is None and not own:
            self.count(id)
            for finding in merged.findings:
                self.add(order, finding)
            return
        tolerance = self.tolerances.tolerance(id, self.factor(id), reference)
        allowed = tolerance.allowed if tolerance.finite else None
        numbers = merged.tensor.numpy(), reference.numpy()
        judged = judge_allowed(*numbers, allowed, tolerance.size, self.rung.dtype)
        right = judged.passed or (not tolerance.finite and np.array_equal(*numbers, equal_nan=True))
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
            self.fail_judged(order, id, merged, reference, judged, allowed)

    def equal(self, id: TensorId) -> bool:
        """Whether every rank's hash of a tensor equals the reference's."""
        reference, candidate = self.reference.trace, self.candidate.trace
        its, ours = reference.holders(id), candidate.holders(id)
        if not (its and ours) or its[0][1].hash != ours[0][1].hash:
            return False
        known = whole_hash(reference, id)
        return known is not None and known == whole_hash(candidate, id)

    def pass_unseen(self, id: TensorId) -> bool:
        """Pass a tensor that equals the reference's, without loading it.

        Returns False if the tensor must be loaded to be judged.
        """
        if id.kind not in ("param", "master_param"):
            return self.pass_equal(id, self.tolerances.tolerance(id, self.factor(id)))
        if id.step == INITIAL:
            return self.pass_equal(id, self.tolerances.exact_tolerance(id), measured=False)
        both = ends(self.reference.trace, id)
        if (id.kind == "param" and self.has_master(id)) or both is None:
            return False
        if both != ends(self.candidate.trace, id) or not all(map(self.equal, both)):
            return False
        undetermined = self.undetermined.get(id.path)
        if undetermined is not None and bool(undetermined.mask.all()):
            return False
        judged_as = msgspec.structs.replace(id, kind="update")
        tolerance = self.tolerances.update_tolerance(id, self.factor(judged_as), undetermined)
        if tolerance is None or not self.pass_equal(judged_as, tolerance):
            return False
        self.result.moved += tolerance.moves
        return True

    def pass_equal(self, id: TensorId, tolerance: Tolerance, measured: bool = True) -> bool:
        """Record that a tensor equals its reference.

        `measured` is false for a tensor that is compared exactly, for which rounding need not be
        measured.  Returns False, and records nothing, if the tensor must be loaded and judged: if
        the reference is empty or not finite, or if rounding must be measured and was not.
        """
        if not tolerance.finite or (measured and tolerance.unmeasured) or not tolerance.elements:
            return False
        if measured:
            self.note(id, tolerance, judge_equal(tolerance.allowed, tolerance.size))
        else:
            self.count(id)
        return True


def compiled_modules(trace: Trace) -> frozenset[str]:
    """The modules that ran inside a compiled region on any rank, where hooks do not run."""
    return frozenset(name for rank in trace.ranks for name in rank.note("compiled"))


def is_compiled(id: TensorId, compiled: Collection[str]) -> bool:
    """Whether a tensor is passed between modules inside a compiled region."""
    return id.kind in ("activation", "activation_grad", "decision") and id.module in compiled
