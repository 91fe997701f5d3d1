"""Describes the faults that were found.  Called by `judges.compare.localize.search`.

Only tensors that were compared are said to agree.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property

from pytest_trainsafe.core.code_files import is_installed, relative
from pytest_trainsafe.core.finding import Finding
from pytest_trainsafe.core.tensor_id import INITIAL, Kind, TensorId
from pytest_trainsafe.core.usage import name_list
from pytest_trainsafe.judges.compare.comparison import Comparison
from pytest_trainsafe.judges.compare.explain.held import keeps_no_state, received_alone
from pytest_trainsafe.judges.compare.explain.module_code import module_code
from pytest_trainsafe.judges.compare.fault.clause import Clause, at
from pytest_trainsafe.judges.compare.fault.located import Located
from pytest_trainsafe.judges.compare.guards.untied import without_shares
from pytest_trainsafe.judges.compare.guards.vacuity import is_unsharded
from pytest_trainsafe.judges.compare.localize.blame import PROGRAM, Fault, Phase
from pytest_trainsafe.judges.compare.localize.clearing import not_cleared
from pytest_trainsafe.judges.compare.localize.code.drifted import Drift
from pytest_trainsafe.judges.compare.localize.code.lines import (
    NOWHERE,
    Place,
    calls,
    constructed,
    is_apart,
    made,
    of_loss,
    set_up,
)
from pytest_trainsafe.judges.compare.localize.code.owners import (
    copies,
    other_class,
    summed_for_others,
    taking_part,
)
from pytest_trainsafe.judges.compare.localize.code.places import Places
from pytest_trainsafe.judges.compare.localize.code.sharper import (
    explained,
    of_no_axis,
    sharper,
)
from pytest_trainsafe.judges.compare.localize.code.unheld import UnheldLines
from pytest_trainsafe.judges.compare.localize.conditions import Steps, unstepped
from pytest_trainsafe.judges.compare.localize.gradients import (
    able_to_sum,
    loss_text,
    lost,
    never_reduced,
    norm_text,
    reduced_wrongly,
    summed_at,
    unsummed,
    with_wrapper,
)
from pytest_trainsafe.judges.compare.localize.inputs import Compared
from pytest_trainsafe.judges.compare.localize.of_modules import given_beside, of_modules
from pytest_trainsafe.judges.compare.localize.terms import reasons
from pytest_trainsafe.judges.compare.rung import RungTraces
from pytest_trainsafe.sweep.program import Program

#: In the sentence on a wrong loss that a backward starts from; a reported one is beside it.
_DIFFERENTIATES = "differentiates is wrong"

#: The report lists at most so many names per group of faults, and so many groups per failure.
MAX_NAMES = 3
MAX_GROUPS = 3

#: The largest number of the program's reductions that are listed.
MAX_REDUCTIONS = 4


def located(
    faults: Sequence[Fault], comparison: Comparison, rung: RungTraces, program: Program, axis: str
) -> Located:
    """The report's rows that describe `faults`.

    `axis` is the text on the axis (such as tp) without which the first fault does not occur, or "".
    """
    description = _Description(faults, comparison, rung, program)
    groups: dict[tuple[Phase, str, bool, str, str], list[Fault]] = {}
    for fault in faults:
        key = fault.phase, description.group(fault), fault.between, fault.uncalled, fault.condition
        groups.setdefault(key, []).append(fault)
    rows: list[tuple[str, str]] = []
    agrees = description.agrees(faults[0])
    for number, group in enumerate(list(groups.values())[:MAX_GROUPS]):
        text = description.describe(group)
        if group[0].phase == "loss" and number == 1 and f" {_DIFFERENTIATES}" in rows[0][1]:
            said = rows[0][1].replace(_DIFFERENTIATES, f"reports and {_DIFFERENTIATES}")
            rows = [("faulty", said + description.clears_the_model())]
            continue
        rows.append(("faulty", agrees + text) if not number else ("also faulty", text))
    if len(groups) > MAX_GROUPS:
        rows.append(("", f"and {len(groups) - MAX_GROUPS} more"))
    if cleared := description.clears_the_optimizer():
        rows.append(("agrees", cleared))
    first = next(iter(groups.values()))
    for number, text in enumerate(description.reductions(first)):
        rows.append(("" if number else "reduced by", text))
    rows += reasons(rung.candidate, comparison, first)
    if left := unstepped(rung.candidate):
        rows.insert(0, ("steps", left))
    if axis:
        rows.append(("axis", of_no_axis(axis, rung.candidate, faults[0])))
    named = tuple((fault.phase, fault.target) for fault in faults)
    place = description.place(first)
    sums = summed_at(rung.candidate, description.places.reductions, named, place.source)
    return Located(tuple(rows), place.source, place.clauses, named, summed=sums)


class _Description:
    def __init__(
        self, faults: Sequence[Fault], comparison: Comparison, rung: RungTraces, program: Program
    ) -> None:
        self.faults = faults
        self.comparison = comparison
        self.rung = rung
        self.modules = {n: e for rank in rung.candidate.ranks for n, e in rank.modules.items()}
        summing = able_to_sum(rung.candidate, comparison, {f.target for f in faults})
        self.places = Places(summing, program, rung.reference)
        self.compared = Compared(rung)
        self.program = program.name

    def group(self, fault: Fault) -> str:
        """The key by which faults of one phase share a sentence, such as the class of a module."""
        if fault.phase == "optimizer":
            return "apart" * bool(self.places.trained([fault.target]))
        own = fault.phase in ("forward", "backward") and fault.condition != "altered"
        return self.modules[fault.target].cls if own and fault.target in self.modules else ""

    def agrees(self, fault: Fault) -> str:
        """The clause that says which tensors before a fault agree; "" if none was compared.

        It begins the sentence on the fault.
        """
        forward = "" if self.fails("activation") else self.compared.modules("activation")
        both = (
            ""
            if self.fails("activation", "activation_grad")
            else self.compared.modules("activation", "activation_grad")
        )
        match fault.phase:
            case "buffer" | "backward" | "loss" if forward:
                return f"the forward of {forward} agrees; "
            case "unheld" if self.fails("buffer"):
                return f"the forward of {forward} agrees; " if forward else ""
            case "weights" | "accumulation" | "reduction" | "clearing" if both:
                return f"the forward and the backward of {both} agree; "
            case "optimizer" if self.compared.has("main_grad") and not self.fails("main_grad"):
                names = [each.target for each in self.faults if each.phase == fault.phase]
                newly = self.places.trained(names).newly or received_alone(self.rung, names)
                other = "other " * bool(newly)
                return f"every {other}gradient that the optimizer receives agrees; "
            case "unheld" if self.compared.has("main_grad"):
                return "every compared parameter that a watched optimizer holds agrees; "
        return ""

    def fails(self, *kinds: Kind, module: str | None = None) -> bool:
        """Whether any tensor of these kinds differs, or any of those that belong to `module`."""
        return any(
            f.where is not None and f.where.kind in kinds and module in (None, f.where.module)
            for f in self.found()
        )

    def clears_the_optimizer(self) -> str:
        """The sentence that the optimizer's step is right; "" unless it was judged alone.

        It is if its wrong gradients were replaced by equal ones in both Runs.
        """
        if not self.updated_alone or any(f.phase == "optimizer" for f in self.faults):
            return ""
        trained = self.compared.trained | self.updated_alone
        count, total = len(self.updated_alone), len(trained)
        which = f"all {total}" if count == total else f"{count} of the {total}"
        return (
            "the optimizer's step: given equal generated gradients in both Runs, it "
            f"updates {which} trained parameters as in the reference"
        )

    @cached_property
    def updated_alone(self) -> frozenset[str]:
        """The compared parameters that both Runs updated by equal, generated gradients."""
        first = min((f.where.step for f in self.found() if f.where is not None), default=INITIAL)
        return Steps(self.rung).updated(first)

    def clears_the_model(self) -> str:
        """The clause that the model is not at fault; "" if a part of it is at fault, too."""
        of_model = ("forward", "backward", "buffer", "weights")
        blamed = any(f.target != PROGRAM and f.phase in of_model for f in self.faults)
        return "" if blamed else "; the model is not at fault"

    def describe(self, group: Sequence[Fault]) -> str:
        """The sentence on a group of faults."""
        fault = group[0]
        if fault.phase in ("forward", "backward"):
            return self.describe_module(group)
        names, total = [fault.target for fault in group], self.compared.parameters
        every = len(names) == total > MAX_NAMES
        parameters = f"all {total} parameters" if every else name_list(names, "parameter")
        both = self.rung.candidate, self.rung.reference
        match fault.phase:
            case "data":
                how = f": {fault.order}" if fault.order else ""
                how += self.clears_the_model()
                return f"the data that {self.program} passes to its model is wrong{how}"
            case "buffer":
                modules = name_list([f.target or "the root module" for f in group], "module")
                return f"the buffers are wrong after the forward of {modules}"
            case "loss":
                cleared = self.clears_the_model() or given_beside(self.faults)
                return f"the loss that {self.program} reports is wrong{cleared}"
            case "norm":
                return norm_text(self.comparison, self.rung, self.compared)
            case "weights":
                return f"the gradients of {parameters} are wrong{self.unsummed(group)}"
            case "clearing":
                step = min((f.where.step for f in self.found() if f.where is not None), default=0)
                how = not_cleared(self.rung.candidate, step, names, self.rung.reference)
                return (
                    f"the gradients of {parameters} still contain those of the previous step: {how}"
                )
            case "accumulation":
                return (
                    f"the gradients of {parameters} are accumulated wrongly: each micro-batch's "
                    f"gradient agrees, but {lost(self.comparison, names)}"
                )
            case "reduction" if how := self.places.rescaled(self.comparison, names):
                return f"the gradients of {parameters} {how}: {self.reduced(names)}"
            case "reduction" if over := never_reduced(self.rung.candidate, self.comparison, names):
                return (
                    f"no reduction of the gradients of {parameters} over {over} was seen in the "
                    "step, so the optimizer receives those of each rank alone"
                )
            case "reduction":
                return f"the gradient reduction of {parameters} is wrong: {self.reduced(names)}"
            case "unheld":
                return UnheldLines(*both, self.comparison, names).sentence()
            case _ if apart := self.places.trained(names).sentence():
                return apart
            case _ if drift := Drift(*both, self.comparison, names).sentence():
                return drift
            case _:
                equal = self.updated_alone.issuperset(names)
                given = ", from equal gradients in both Runs" if equal else ""
                if alone := received_alone(self.rung, names):
                    given = alone
                elif keeps_no_state(self.rung, names):
                    given += "; it keeps no state of what it leaves out, unlike in the reference"
                elif self.compared.states(names) and not self.fails("optimizer_state"):
                    given += (
                        "; the states of the optimizer agree, so what it then writes to the "
                        "parameters is wrong or missing"
                    )
                return f"the optimizer's step of {parameters} is wrong{given}"

    def reduced(self, names: Sequence[str]) -> str:
        """As `reduced_wrongly`."""
        return reduced_wrongly(self.rung, self.comparison, self.compared, names)

    def describe_module(self, group: Sequence[Fault]) -> str:
        """The sentence on faults in the forward or backward of modules."""
        fault = group[0]
        if fault.handed is not None:
            what = "what" if fault.phase == "forward" else "the gradient that"
            return (
                f"{what} {self.program} sends to rank {fault.handed} of pp is wrong, outside of "
                "the model: it agrees in the stage that sends it, but not where it arrives"
            )
        if fault.target == PROGRAM and fault.phase == "forward":
            cleared = self.clears_the_model()
            return f"the input that {self.program} passes to its model is wrong{cleared}"
        if fault.target == PROGRAM and fault.uncalled:
            return f"{self.program} does not run the backward of every micro-batch"
        if fault.target == PROGRAM:
            return loss_text(self.program, fault.after, self.rung.candidate, self.comparison)
        return of_modules(group, self.modules, self.compared, self.found())

    def unsummed(self, group: Sequence[Fault]) -> str:
        """A clause on what a group's gradients lack: the terms of an axis, or of a parameter.

        "" if neither is known.
        """
        own = self.unshared(group)
        if own:
            names = name_list([id.path for id in own], "parameter")
            return f": they lack the gradients of {names}, which the reference shares with them"
        axis = self.unsummed_axis(group)
        if not axis:
            return ""
        if copies(self.rung.candidate, [fault.target for fault in group], axis):
            return f": they are not summed over {axis}, whose stages hold copies of it"
        return f": they are not summed over {axis}, where each rank holds a term"

    def unsummed_axis(self, group: Sequence[Fault]) -> str:
        """The axis over which the gradients of the group's parameters are never summed, or ""."""
        return unsummed(self.comparison, [fault.target for fault in group], {"param_grad"})

    def unshared(self, group: Sequence[Fault]) -> list[TensorId]:
        """The parameters that the reference shares with the first of the group, as `untied` says.

        [] if they do not explain this parameter's wrong gradient.
        """
        target = group[0].target
        wrong = (f.where for f in self.found() if f.where and f.where.path == target)
        first = next((id for id in wrong if id.kind == "param_grad"), None)
        return without_shares(self.rung, first) if first is not None else []

    def reductions(self, group: Sequence[Fault]) -> list[str]:
        """The program's reductions as texts for the report; [] if none is wrong or missing."""
        phase = group[0].phase
        if phase not in ("reduction", "weights", "norm"):
            return []
        listed = self.places.listed(phase, [fault.target for fault in group], self.comparison)
        called = [f", called at {relative(made.caller)}" * bool(made.caller) for made in listed]
        found = [
            f"{made} at {relative(made.site)}{by}" for made, by in zip(listed, called, strict=True)
        ]
        more = [f"and {len(found) - MAX_REDUCTIONS} more"] if len(found) > MAX_REDUCTIONS else []
        return found[:MAX_REDUCTIONS] + more

    def found(self) -> Iterator[Finding]:
        """The failing findings."""
        return (f for f in self.comparison.findings if f.verdict == "fail")

    def place(self, group: Sequence[Fault]) -> Place:
        """The source line at fault and clauses that describe it; NOWHERE if none is known."""
        found = self.code_at_fault(group)
        if not found:
            return NOWHERE
        source, (own, *others) = found.source, found.clauses
        candidate, names = self.rung.candidate, [fault.target for fault in group]
        where = next((each.where for each in self.found()), None)
        belongs = taking_part(
            candidate, self.modules, group, self.faults, source, self.compared, where
        )
        if group[0].phase == "reduction" and is_unsharded(candidate):
            step = self.places.of_phase("clearing", self.comparison).source
            belongs.append(at("zero has no effect on the optimizer's step", step))
        if group[0].phase in ("weights", "reduction"):
            reduced = self.places.reductions
            belongs += summed_for_others(candidate, self.comparison, reduced, names)
        if explained(self.comparison):  # the pattern says what is wrong
            others = [clause for clause in others if clause.kind != "unwaited"]
        sharp = sharper(candidate, self.modules, group, self.comparison, self.compared.outputs)
        named = {line for clause in sharp for line, _ in clause.lines}
        led = [
            clause
            for clause in self.leading_to(group, source)
            if named.isdisjoint(line for line, _ in clause.lines)
        ]
        return Place(source, (own, *sharp, *others, *led, *belongs))

    def leading_to(self, group: Sequence[Fault], source: str) -> list[Clause]:
        """Clauses on another line that takes part in a fault whose code is at `source`.

        For the program's own code, it is the line that makes the wrong tensor.  For a module, it is
        the line that makes its output or calls the modules in it, or else the line that put it into
        its place.  For gradients of parameters, it may be another class that has such parameters.
        """
        fault = group[0]
        if fault.target == PROGRAM:
            return self.made_by_program(fault, source)
        if fault.phase == "weights":
            own = self.unshared(group)
            if own:
                return set_up(self.rung.candidate, own[0].module, source)
            module = fault.target.rpartition(".")[0]
            same = source == self.code(module).source
            others = other_class(self.modules, group, source) if same else []
            return others or set_up(self.rung.candidate, module, source)
        if fault.condition or fault.phase not in ("forward", "backward", "buffer"):
            return []
        clauses: list[Clause] = []
        if fault.phase == "forward" and not fault.uncalled:
            line = made(self.rung.candidate, "output", fault.target)
            # Of a package that makes the output, the program's line only calls the model.
            if line != self.places.led_there() and is_apart(line, source):
                clauses.append(at("its output is made", line, kind="made"))
        if not clauses and (fault.between or fault.uncalled):
            caller = self.compared.caller(fault.target) if fault.uncalled else fault.target
            clauses = calls(self.rung.candidate, caller or "", source)
        clauses = clauses or set_up(self.rung.candidate, fault.target, source)
        own_code = fault.phase != "buffer" and not fault.uncalled and not is_installed(source)
        if clauses or not own_code or source != self.modules[fault.target].source:
            return clauses
        return constructed(self.rung.candidate, fault.target, source)

    def made_by_program(self, fault: Fault, source: str) -> list[Clause]:
        """The clause of `leading_to` on the line that makes what the program's own code uses."""
        if fault.handed is not None:
            return []
        if fault.phase in ("data", "forward"):
            for finding in self.found():
                if finding.where is not None and finding.where.kind == "input":
                    line = made(self.rung.candidate, "input", finding.where.name)
                    found = at(f"{finding.where.name} is made", line, kind="made")
                    return [found] if is_apart(line, source) else []
        return []

    def agreed_loss(self) -> str:
        """The line that reports the loss to the context, if its values agree; else ""."""
        reported = (s.user or s.at for s in self.places.sites if s.what == "loss")
        return "" if self.comparison.wrong["loss"] else next(reported, "")

    def code_at_fault(self, group: Sequence[Fault]) -> Place:
        """The source line at fault and clauses that describe it; NOWHERE if none is known."""
        fault = group[0]
        of_module = fault.phase in ("forward", "buffer", "backward", "weights")
        if fault.target == PROGRAM or not of_module:
            targets = [] if fault.target == PROGRAM else [each.target for each in group]
            if (fault.phase, fault.uncalled, fault.handed) == ("backward", "", None):
                start = self.places.of_phase("backward", self.comparison)
                found = of_loss(self.rung.candidate, start, self.agreed_loss())
                return with_wrapper(self.rung.candidate, self.comparison, found)
            return self.places.of_phase(fault.phase, self.comparison, targets)
        if fault.condition:
            place = self.places.of_condition(fault.condition, fault.target)
            return place or self.code(fault.target)
        if fault.phase == "weights":
            own = self.unshared(group)
            if own:
                return self.code(own[0].module)
            axis = self.unsummed_axis(group)
            summing = self.places.summing(axis, [f.target for f in group]) if axis else NOWHERE
            return summing or self.code(fault.target)
        if not fault.uncalled:
            return self.code(fault.target)
        caller = self.compared.caller(fault.target)  # the module's own code did not run
        if caller is None:
            return self.places.of_phase("forward", self.comparison)
        return self.code(caller)

    def code(self, path: str) -> Place:
        """The source line that defines a module's class.

        If it is in an installed package, the description adds the user's line that calls the model.
        """
        cls, source = module_code(self.modules, path)
        if not source:
            return NOWHERE
        found, user = Place(source, (Clause(f"module class {cls}"),)), self.places.led_there()
        if is_installed(source) and user:
            return found.and_also(at("the model is called", user))
        return found.and_also(*self.places.program_of(source)) if is_installed(source) else found
