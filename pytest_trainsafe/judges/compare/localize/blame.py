"""Finds the code that produced the tensors that differ in a rewritten Run.

If a module's output is wrong and its inputs agree, that module is at fault.  If its inputs are
wrong, the code between modules is at fault, which belongs to the module that calls them.  If the
gradient of an output is wrong, a consumer of the output is at fault: a module whose input gradients
are wrong, or else the code that calls the consumers.  Effects of a reported fault are omitted.
Called by `judges.compare.localize.search`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from pytest_trainsafe.core.rungs.table import rung_named
from pytest_trainsafe.core.tensor_id import INITIAL, TensorId
from pytest_trainsafe.judges.compare.comparison import Comparison
from pytest_trainsafe.judges.compare.events import replacement, rewrite_key
from pytest_trainsafe.judges.compare.explain.common_step import follow_a_factor
from pytest_trainsafe.judges.compare.explain.held import parameter_of, unheld_in_both, untrained
from pytest_trainsafe.judges.compare.localize.code.unheld import changed_between_forwards
from pytest_trainsafe.judges.compare.localize.code.unreached import unreached
from pytest_trainsafe.judges.compare.localize.conditions import Condition, Conditions, Steps
from pytest_trainsafe.judges.compare.localize.gradients import lost
from pytest_trainsafe.judges.compare.localize.inputs import Compared, Inputs, callers_of
from pytest_trainsafe.judges.compare.localize.stages import (
    is_input,
    is_last,
    stage_of,
    wrong_transfer,
)
from pytest_trainsafe.judges.compare.rung import RungTraces
from pytest_trainsafe.trace.reader import Trace
from pytest_trainsafe.trace.run_spec import Rewrite

Phase = Literal[
    "data",
    "forward",
    "buffer",
    "backward",
    "weights",
    "loss",
    "accumulation",
    "reduction",
    "clearing",
    "norm",
    "optimizer",
    "unheld",
]

#: The program's own code, outside its model.
PROGRAM = "<program>"

#: The kinds that an optimizer's step produces.
_STEPPED = frozenset({"param", "master_param", "optimizer_state", "update"})

#: The prefixes of the dtypes that modules compute with.
_NUMBERS = ("float", "bfloat", "complex")


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault: the phase of the step, and what is at fault.

    `target` is the path of a module or parameter, or PROGRAM for the code outside the model.
    `between` is true if the fault is in the module's own code, between the modules that it calls.
    `handed` is the pp rank that receives a wrong tensor, if PROGRAM's transfer between stages is
    wrong.  `not_compared` is true if some inputs of a forward were not compared: an input that was
    not compared may be wrong instead.  `uncalled` is set if the module is called less often than in
    the reference, or never, or if PROGRAM runs the backward of fewer micro-batches.  `condition` is
    set if the module's forward runs under a condition under which the reference's does not.
    `after` is the last recorded module of a model whose own output was not recorded.  `order` says
    in which order PROGRAM's data is divided, if that is wrong.  `cut` is the module whose output no
    gradient reaches.
    """

    phase: Phase
    target: str
    between: bool = False
    handed: int | None = None
    not_compared: bool = False
    uncalled: Literal["", "never", "less"] = ""
    condition: Condition = ""
    after: str = ""
    order: str = ""
    cut: str = ""


@dataclass(frozen=True, slots=True)
class Stages:
    """The candidate's trace with the tensors of every pipeline stage.

    `cut` has the modules that are cut into several stages.  The rung given to `blame` has fewer
    tensors of these modules: the input of the first stage and the output of the last stage.
    """

    candidate: Trace
    cut: frozenset[str] = frozenset()


def blame(
    rung: RungTraces, comparison: Comparison, rewrite: dict[str, Rewrite], stages: Stages
) -> list[Fault]:
    """The faults that explain the differences, in dataflow order."""
    found = list(dict.fromkeys(_Blame(rung, comparison, rewrite, stages).faults()))
    # Stages may differ in code from the whole module: blame them only if nothing else is wrong.
    return [fault for fault in found if fault.target not in stages.cut] or found


class _Blame:
    def __init__(
        self, rung: RungTraces, comparison: Comparison, rewrite: dict[str, Rewrite], stages: Stages
    ) -> None:
        self.rung = rung
        self.comparison = comparison
        self.factor = comparison.factor
        self.stages = stages
        self.inputs = Inputs(rung)
        self.compared = Compared(rung)
        self.rewrite = rewrite
        failing = (f.where for f in comparison.findings if f.verdict == "fail")
        self.wrong = [id for id in dict.fromkeys(failing) if id is not None and id.step != INITIAL]
        self.callers = callers_of(rung.reference)
        self.conditions = Conditions(rung)
        self.steps = Steps(rung)
        self.input_ids: dict[tuple[int, int | None, str, str], list[TensorId]] = {}
        for id in rung.reference.ids():
            if is_input(id):
                key = (id.step, id.microbatch, id.kind, id.module)
                self.input_ids.setdefault(key, []).append(id)

    def faults(self) -> Iterator[Fault]:
        """The faults in dataflow order, with duplicates."""
        if self.of("input"):
            yield Fault("data", PROGRAM)
        outputs = self.of("activation")
        forward = [fault for id in outputs for fault in self.forward(id)]
        yield from forward
        at_fault = {fault.target for fault in forward} | {id.module for id in outputs}
        for id in self.of("activation_grad"):
            yield from (fault for fault in self.backward(id) if fault.target not in at_fault)
        changed = changed_between_forwards(self.of("buffer"), self.rung)
        for id in self.of("buffer"):
            if id.path in changed:
                yield Fault("unheld", id.path)
            elif id.module not in at_fault and not self.wrong_inputs(id.module):
                yield Fault("buffer", id.module)
        if self.of("loss") and not (self.wrong_outputs_of(None) and forward):
            yield Fault("loss", PROGRAM)
        weights = [id for id in self.of("param_grad") if not self.explained(id, at_fault)]
        if any((id.step, id.microbatch) not in self.compared.differentiated for id in weights):
            yield Fault("backward", PROGRAM, uncalled="less")
        elif cut := unreached(self.rung, weights, self.callers):
            yield Fault("backward", cut.target, cut.target != cut.module, cut=cut.module)
        else:
            yield from (Fault("weights", id.path) for id in weights)
        yield from self.after_the_backward(at_fault)

    def after_the_backward(self, at_fault: Iterable[str]) -> Iterator[Fault]:
        """The faults of reductions, of the norm, of the optimizer and of what no optimizer holds.

        If gradients are clipped by a norm, one wrong gradient makes all of them wrong.  A gradient
        that was compared only after its reduction may be wrong because of a module `at_fault`.
        """
        wrong = {id.path for id in self.of("param_grad")}
        norm, given, unclipped = map(self.of, ("grad_norm", "main_grad", "unclipped_grad"))
        reduced = unclipped or given
        clipped = self.factor is not None and bool(self.factor.clips)
        scaled = {*self.factor.scaled} if self.factor is not None and clipped else set()
        idle = untrained(self.rung, self.wrong)
        unscaled = [id for id in reduced if id not in scaled and id.path not in idle]
        late = [
            id
            for id in unscaled
            if id.path not in wrong
            and (self.compared.gradient(id.path) or not self.explained(id, at_fault))
        ]
        if not given and (norm or any(id.kind in _STEPPED for id in self.wrong)):
            late += [id for id in self.lacking("main_grad") if id.path not in wrong]
        if idle:
            yield from (Fault("optimizer", path) for path in idle)
            yield from (Fault(self.phase_of(late), id.path) for id in late if clipped)
        elif given and not unclipped and self.comparison.compared["unclipped_grad"]:
            yield Fault("norm", PROGRAM)  # correct before clipping, wrong after it
        else:
            if clipped or not (norm and wrong):
                yield from (Fault(self.phase_of(late), id.path) for id in late)
            # The norm of wrong gradients is wrong, also of those that another fault explains.
            if not (wrong or late or unscaled) and (norm or scaled):
                yield Fault("norm", PROGRAM)
        wrong |= {id.path for id in (*reduced, *late)}
        stepped = [id for id in self.wrong if id.kind in _STEPPED and self.judges(id, wrong)]
        # A common factor on all gradients is an effect of the fault before it.
        follow = self.follow_a_factor(stepped) if norm or wrong else set()
        unheld = unheld_in_both(self.rung.candidate, self.rung.reference)
        # What no optimizer holds, such as an average, may follow from a wrong trained parameter.
        alone = unheld.issuperset(parameter_of(id) for id in self.wrong if id.kind in _STEPPED)
        for path in (parameter_of(id) for id in stepped):
            if path in unheld and alone:
                yield Fault("unheld", path)
            elif path not in follow and path not in unheld:
                yield Fault("optimizer", path)

    def judges(self, id: TensorId, wrong: Collection[str]) -> bool:
        """Whether a wrong step shows a fault of the optimizer.

        It does if the step used equal gradients in both Runs: generated ones, or right ones.
        `wrong` has the parameters whose gradients are wrong.
        """
        path = parameter_of(id)
        if self.steps.unequal(id, path):
            return False
        return self.steps.alone(id, path) or {id.path, path}.isdisjoint(wrong)

    def phase_of(self, gradients: Sequence[TensorId]) -> Phase:
        """The phase that makes gradients wrong of which each micro-batch is right."""
        if self.are_uncleared(gradients):
            return "clearing"
        found = lost(self.comparison, {id.path for id in gradients})
        return "accumulation" if found else "reduction"

    def are_uncleared(self, gradients: Iterable[TensorId]) -> bool:
        """Whether the gradients that are explained contain those of the previous step."""
        ids = {*gradients}
        found = {f.pattern.name for f in self.comparison.findings if f.where in ids and f.pattern}
        return found == {"uncleared"}

    def follow_a_factor(self, stepped: Iterable[TensorId]) -> set[str]:
        """The parameters whose steps are wrong as if all gradients had one wrong factor."""
        paths = {parameter_of(id) for id in stepped}
        step = self.wrong[-1].step
        given = (id for id in self.rung.reference.ids() if id.kind == "main_grad")
        ids = [id for id in given if id.step == step and id.path in paths]
        used = {id: self.generated(id) for id in ids if self.steps.alone(id, id.path)}
        return follow_a_factor(self.rung, ids, used)

    def generated(self, id: TensorId) -> torch.Tensor:
        """The logical values by which a main gradient was replaced."""
        like = torch.empty(0, dtype=rung_named(self.rung.dtype).dtype)
        seed = self.rung.reference.manifest.spec.seed
        return replacement(id, self.rewrite[rewrite_key(id)], seed, like)

    def lacking(self, kind: str) -> list[TensorId]:
        """The reference's tensors of a kind in the first wrong step, if the candidate has none."""
        step = min(id.step for id in self.wrong)
        candidate, reference = self.rung.candidate, self.rung.reference
        if any(id.kind == kind and id.step == step for id in candidate.ids()):
            return []  # some are present, so no single cause removed them
        return [id for id in reference.ids() if id.kind == kind and id.step == step]

    def of(self, kind: str) -> list[TensorId]:
        """The wrong tensors of a kind."""
        return [id for id in self.wrong if id.kind == kind]

    # Forward.

    def forward(self, id: TensorId) -> Iterator[Fault]:
        """Yields the fault behind a wrong output, unless another module's wrong output caused it.

        It is in the module itself, in its nearest caller with correct inputs, or in the program.
        """
        if not self.rung.candidate.holders(id):
            yield from self.uncalled(id)
            return
        target, between = id.module, self.has_children(id.module)
        given = self.input_ids_of(id)
        wrong = self.wrong_of(given, id)
        while wrong:
            if any(self.source_is_wrong(i) for i in wrong):
                return
            caller = self.callers.get(target)
            if caller is None:
                stage = stage_of(self.rung.candidate, id)
                entered = self.parts_run(id)[:1] == [target]
                if self.only_counts(wrong) or (entered and stage == 0):
                    yield Fault("data", PROGRAM, order=self.inputs.order(wrong, id))
                else:
                    yield Fault("forward", PROGRAM, handed=stage if entered else None)
                return
            target, between = caller, True
            wrong = self.wrong_inputs_of(target, id)
        if between and self.wrong_outputs_of(target, below=id.module):
            return  # the error comes from an output that was not rewritten
        condition = self.conditions.of(target, id)
        if condition:
            yield Fault("forward", target, condition=condition)
        elif between:
            yield self.between("forward", target)
        else:
            not_compared = not given or not all(self.inputs.agrees(each) for each in given)
            yield Fault("forward", target, not_compared=not_compared)

    def uncalled(self, id: TensorId) -> Iterator[Fault]:
        """Yields the module that lacks an output, unless its caller lacks one too."""
        if self.is_missing(self.callers.get(id.module), id):
            return
        calls = {
            (other.step, other.microbatch, other.call): other
            for other in self.rung.candidate.ids()
            if other.module == id.module and other.kind == "activation" and not is_input(other)
        }
        if (id.step, id.microbatch, id.call) in calls:
            yield Fault("forward", id.module, self.has_children(id.module))
        else:
            yield Fault("forward", id.module, uncalled="less" if calls else "never")

    def is_missing(self, module: str | None, at: TensorId) -> bool:
        """Whether a module lacks an output in a tensor's step and micro-batch."""
        return any(
            id.module == module and not self.rung.candidate.holders(id)
            for id in self.of("activation")
            if (id.step, id.microbatch) == (at.step, at.microbatch)
        )

    def only_counts(self, ids: Iterable[TensorId]) -> bool:
        """Whether all inputs are integers: tokens, labels or masks, which no module computes."""
        events = [self.rung.reference.holders(id)[0][1] for id in ids]
        return all(not event.dtype.startswith(_NUMBERS) for event in events)

    def between(self, phase: Literal["forward", "backward"], target: str) -> Fault:
        """The fault in the code between the modules that `target` calls, or between its stages."""
        handed, caller = None, target
        while caller in self.stages.cut:
            handed = wrong_transfer(self.stages.candidate, caller, phase)
            if handed is None:
                return Fault(phase, caller, between=True)
            if caller not in self.callers:
                return Fault(phase, PROGRAM, handed=handed)
            caller = self.callers[caller]
        return Fault(phase, caller, between=True)

    def source_is_wrong(self, id: TensorId) -> bool:
        """Whether an input is the output of a module that is reported as wrong."""
        module = self.inputs.source(id).removeprefix("output of ")
        return any(wrong.module == module for wrong in self.of("activation"))

    def wrong_outputs_of(self, caller: str | None, below: str = "") -> list[TensorId]:
        """Of the modules that `caller` calls, the wrong outputs that were not rewritten.

        `below` is the path of one such module, whose outputs are left out.
        """
        return [
            id
            for id in self.of("activation")
            if self.callers.get(id.module) == caller
            and id.module != below
            and rewrite_key(id) not in self.rewrite
        ]

    def parts_run(self, at: TensorId) -> list[str]:
        """The modules that the program itself calls in a tensor's micro-batch, on its stage."""
        rank, _ = self.rung.candidate.holders(at)[0]
        when = at.step, at.microbatch, "activation"
        ran = (id for id in rank.tensors if (id.step, id.microbatch, id.kind) == when)
        return list(dict.fromkeys(id.module for id in ran if id.module not in self.callers))

    def input_ids_of(self, id: TensorId) -> list[TensorId]:
        """The inputs of the call that produced an output."""
        ids = self.input_ids.get((id.step, id.microbatch, "activation", id.module), [])
        return [i for i in ids if i.call == id.call]

    def wrong_inputs(self, module: str) -> bool:
        """Whether any call of a module received wrong inputs."""
        keys = [key for key in self.input_ids if key[2:] == ("activation", module)]
        return any(self.inputs.differs(i) for key in keys for i in self.input_ids[key])

    def wrong_inputs_of(self, module: str, at: TensorId) -> list[TensorId]:
        """The wrong inputs of a module in a tensor's step and micro-batch."""
        ids = self.input_ids.get((at.step, at.microbatch, "activation", module), [])
        return self.wrong_of(ids, at)

    def wrong_of(self, given: Sequence[TensorId], at: TensorId) -> list[TensorId]:
        """Those of `given` that differ, or explain a wrong output `at` by their order."""
        differing = [id for id in given if self.inputs.differs(id)]
        return differing or self.inputs.out_of_order(given, at)

    # Backward.

    def backward(self, id: TensorId) -> Iterator[Fault]:
        """Yields the modules or the code whose backward produced an output's wrong gradient."""
        caller = self.callers.get(id.module)
        if caller is None:
            stage, stages = stage_of(self.rung.candidate, id), self.rung.candidate.sizes["pp"]
            left = stage < stages - 1 and self.parts_run(id)[-1:] == [id.module]
            yield Fault("backward", PROGRAM, handed=stage if left else None)
            return
        users = [user for user in self.run_by(caller) if self.leaves_wrong(user, id)]
        for user in users:
            yield from self.innermost(user, id)
        if users:
            return
        if caller not in self.callers and is_last(self.rung.candidate, id, caller):
            yield Fault("backward", PROGRAM, after=id.module)
        elif not self.wrong_forward(caller, id):
            yield self.between("backward", caller)

    def innermost(self, module: str, at: TensorId) -> Iterator[Fault]:
        """Yields the innermost modules at fault in the backward of `module`, or `module` itself.

        Yields nothing if wrong tensors reach `module`.
        """
        if self.wrong_forward(module, at) or self.arrives_unrewritten(module, at):
            return
        inner = [child for child in self.run_by(module) if self.leaves_wrong(child, at)]
        for child in inner:
            yield from self.innermost(child, at)
        if not inner and not any(
            self.callers.get(id.module) == module for id in self.of("activation_grad")
        ):
            yield Fault("backward", module, self.has_children(module))

    def run_by(self, module: str) -> list[str]:
        """The modules that a module calls."""
        return [child for child, caller in self.callers.items() if caller == module]

    def leaves_wrong(self, module: str, at: TensorId) -> bool:
        """Whether the gradient of one of a module's inputs is wrong in the micro-batch of `at`."""
        ids = self.input_ids.get((at.step, at.microbatch, "activation_grad", module), [])
        return any(self.inputs.differs(id) for id in ids)

    def wrong_forward(self, module: str, at: TensorId) -> bool:
        """Whether the module's inputs or outputs are wrong."""
        outputs = any(id.module == module for id in self.of("activation"))
        return outputs or bool(self.wrong_inputs_of(module, at))

    def arrives_unrewritten(self, module: str, at: TensorId) -> bool:
        """Whether the module received a wrong gradient that was not rewritten."""
        return any(
            id.module == module and rewrite_key(id) not in self.rewrite
            for id in self.of("activation_grad")
        )

    # Parameters.

    def explained(self, id: TensorId, at_fault: Iterable[str]) -> bool:
        """Whether another fault explains the wrong gradient `id` of a parameter.

        It does if the parameter's module is in a module at fault, has wrong inputs or outputs, or
        received a wrong gradient that was not rewritten.
        """
        return any(not each or f"{id.module}.".startswith(f"{each}.") for each in at_fault) or (
            self.wrong_forward(id.module, id) or self.arrives_unrewritten(id.module, id)
        )

    def has_children(self, module: str) -> bool:
        """Whether a module calls other modules."""
        return module in self.callers.values()
