"""Finds the source line of a fault outside the modules, such as a reduction or an optimizer step.

Reads the lines that the recorder stored, for `localize/description.py` and `localize/search.py`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace

from pytest_trainsafe.core.code_files import is_fixture
from pytest_trainsafe.core.finding import Pattern
from pytest_trainsafe.core.tensor_id import TensorId
from pytest_trainsafe.core.usage import name_list
from pytest_trainsafe.judges.compare.comparison import Comparison
from pytest_trainsafe.judges.compare.explain.held import unheld_in_both
from pytest_trainsafe.judges.compare.fault.clause import Clause, at
from pytest_trainsafe.judges.compare.localize.blame import Phase
from pytest_trainsafe.judges.compare.localize.clearing import of_clearing
from pytest_trainsafe.judges.compare.localize.code.drifted import Drift
from pytest_trainsafe.judges.compare.localize.code.lines import (
    NOWHERE,
    Place,
    has_whole_steps_only,
    of_reported,
    own,
    program_line,
    step_of,
    through,
    unwaited,
    writes_of,
)
from pytest_trainsafe.judges.compare.localize.code.owners import copies, set_up_after
from pytest_trainsafe.judges.compare.localize.code.unheld import UnheldLines
from pytest_trainsafe.judges.compare.localize.conditions import Condition, evaluations
from pytest_trainsafe.judges.compare.localize.gradients import (
    adds_up,
    never_reduced,
    not_of_others,
    once,
    sizes_of,
    suspicion,
    unsummed,
)
from pytest_trainsafe.judges.compare.unmatched import line_of_entry
from pytest_trainsafe.sweep.program import Program
from pytest_trainsafe.trace.facts import Annotations, Reduction, Site, What
from pytest_trainsafe.trace.reader import Trace

#: For each kind of tensor that no module produces: the phase that produces it.
_MADE_BY: dict[str, Phase] = {
    "input": "data",
    "loss": "loss",
    "grad_norm": "norm",
    "param": "optimizer",
    "master_param": "optimizer",
    "update": "optimizer",
    "optimizer_state": "optimizer",
}

#: What a line does, for the report's "look at" row.
_DOES: dict[What, str] = {
    "model": "calls the model",
    "loss": "reports the loss",
    "norm": "reports the gradient norm",
    "backward": "starts the backward",
    "step": "steps the optimizer",
    "alter": "changes parameters before the step's last forward",
    "mode": "switches to evaluation mode",
    "watch": "passes the annotations to ctx.watch",
    "clear": "clears gradients between two backwards of a step",
}

#: What a wrapper does; parameters that the module gets later are not among these.
_REDUCES = "reduces the gradients of the parameters that its module had then"

#: In-place operations that scale a gradient.
_SCALES = frozenset({"mul_", "div_", "_foreach_mul_", "_foreach_div_"})

#: The largest relative difference between the factor of an error and that of a line that causes it.
_NEAR = 0.02

#: The patterns of gradients that a missing or wrong reduction may have.
_OF_REDUCTIONS = frozenset(
    {"partial sum", "scaled", "other micro-batches", "uncleared", "zero", "stale", "clip factor"}
)


class Places:
    """The source lines that a candidate's trace recorded, searched for the line at fault.

    Lines that change gradients in the same way in the `reference` are not at fault.
    """

    def __init__(self, candidate: Trace, program: Program, reference: Trace | None = None) -> None:
        self.candidate = candidate
        self.program = program
        self.reference = reference
        self.expected = set() if reference is None else writes_of(reference)
        self.reductions = self._reductions("gradients")
        self.norms = self._reductions("norm")
        found = dict.fromkeys(site for rank in candidate.ranks for site in rank.events_of(Site))
        self.sites = [site for site in found if site.what != "mode"]

    def of_phase(self, phase: Phase, comparison: Comparison, targets: Iterable[str] = ()) -> Place:
        """The source line of a fault that is not in a module but in the program's own code.

        `phase` is the phase of the step in which the fault is, and `targets` has the paths of the
        wrong parameters.
        """
        match phase:
            case "data" | "forward":
                found = self._does("model", "loss")
            case "backward":
                found = self._does("backward")
            case "loss":
                found = of_reported(self._does("loss"))
            case "norm":
                found = self._norm(comparison)
            case "reduction":
                found = self._reduction(comparison, targets)
            case "accumulation":
                found = self._accumulation()
            case "clearing":
                found = of_clearing(self.candidate, self.reference) or self._does("step")
            case "optimizer":
                found = Drift(self.candidate, self.reference, comparison, {*targets}).place()
                found = found or self._optimizer()
            case "unheld":
                found = UnheldLines(self.candidate, self.reference, comparison, {*targets}).place()
            case _:
                return NOWHERE
        return found or self._program()

    def changed(self, comparison: Comparison, targets: Iterable[str]) -> Site | None:
        """The line that changes the gradients of `targets` wrongly after their backward.

        `targets` has the paths of parameters.  If the gradients are multiples of the reference's,
        it is a line that multiplies by this number.  If their error is none that a reduction makes,
        and a wrapper of torch reduces them, it is any line of the program that does not multiply.
        """
        patterns = _patterns(comparison, ("unclipped_grad", "main_grad"), {*targets})
        found = self._multiplies(patterns)
        wrapped = any(site.what == "wrapper" for site in self.sites)
        if found is not None or not wrapped or _OF_REDUCTIONS & {p.name for p in patterns}:
            return found
        own = (s for s in self._unexpected() if not s.user and s.name not in _SCALES)
        return next(own, None)

    def _multiplies(self, patterns: Iterable[Pattern]) -> Site | None:
        """The line that multiplies gradients by the factor of the first pattern that has one."""
        factor = next((pattern.factor for pattern in patterns if pattern.factor), 0.0)
        near = _NEAR * abs(factor)
        unexpected = self._unexpected() if factor else iter(())
        return next((site for site in unexpected if abs(site.factor - factor) <= near), None)

    def _unexpected(self) -> Iterator[Site]:
        """The lines that change gradients in place, and not in the same way in the reference."""
        return (site for site in self.sites if site.what == "write" and site not in self.expected)

    def of_condition(self, condition: Condition, module: str) -> Place:
        """The source line that changes parameters before a forward, or switches a module's mode."""
        if condition == "altered":
            return self._does("alter") or self._program()
        site = evaluations(self.candidate).get(module) if condition == "evaluated" else None
        if site is None or not site.at:
            return NOWHERE
        return self._place(site, _DOES["mode"])

    def of_tensor(self, id: TensorId, comparison: Comparison) -> Place:
        """The source line that produces the wrong tensor `id`, if no module does."""
        phase = _MADE_BY.get(id.kind)
        if id.microbatch is None and id.kind.endswith("_grad"):
            phase = "reduction"
        if phase == "optimizer" and id.path in unheld_in_both(self.candidate, self.reference):
            phase = "unheld"
        if any(f.pattern and f.pattern.name == "same data" for f in comparison.findings):
            phase = "data"
        if phase is None and has_whole_steps_only(self.candidate):
            phase = "forward"  # no module is compared, as for a buffer
        if phase is None:
            return NOWHERE
        factor = comparison.factor
        if phase == "reduction" and factor is not None and factor.clips and not factor.apart:
            phase = "norm"
        return self.of_phase(phase, comparison, [id.path])

    def of_annotations(self, entry: str = "") -> Place:
        """The source line that passes the annotations to ctx.watch, if the program passes any.

        If they are in a file, it is the line of `entry`, such as "parameters: fc.weight", there.
        """
        line = line_of_entry(self.candidate, entry)
        if line is not None:
            return Place(line, (Clause(entry),)) if entry else NOWHERE
        facts = (each for rank in self.candidate.ranks for each in rank.events_of(Annotations))
        return self._does("watch") if any(each.given for each in facts) else NOWHERE

    def summing(self, axis: str, targets: Sequence[str] = ()) -> Place:
        """The line that sums gradients over `axis`, or sets up a copy of `targets` along it."""
        made = [each for each in self.reductions if axis in each.axes and adds_up(each)]
        return self._of(made) if made else copies(self.candidate, targets, axis)

    def led_there(self) -> str:
        """The user's line that calls the model, for faults in installed packages."""
        sites = [site for site in self.sites if site.what == "model"]
        return next((site.user or site.at for site in sites if own(site.user or site.at)), "")

    def listed(self, phase: Phase, targets: Iterable[str]) -> list[Reduction]:
        """The collectives that the report lists for a fault.

        For the phase "norm", the result has the collectives that reduce the gradient norm.  For any
        other phase, the result has those that possibly reduce the gradients of `targets`, paths of
        parameters.  Those that were given the gradients of other parameters alone do not.
        """
        if phase == "norm":
            return once(self.norms)
        targets = [*targets]
        return once(self._fitting(targets) or self._possible(targets, self.reductions))

    def _reductions(self, of: str) -> list[Reduction]:
        ranks = self.candidate.ranks
        made = dict.fromkeys(each for rank in ranks for each in rank.events_of(Reduction))
        return [each for each in made if each.of == of]

    def _does(self, *kinds: What) -> Place:
        for what in kinds:
            for site in self.sites:
                if site.what == what:
                    return self._place(site, _DOES[what])
        return NOWHERE

    def _norm(self, comparison: Comparison) -> Place:
        """The source line that reduces the gradient norm, or that scales gradients by it.

        If ranks report the norms of their own parts, it is the line that reports the norm, unless
        some line reduces the norm over other axes.
        """
        factor = comparison.factor
        parts = factor.of_parts if factor is not None and factor.clips != "right norm" else ""
        if parts and not self.norms and (found := self._does("norm")):
            own, *others = found.clauses
            unsummed = replace(own, text=f"{own}, which is not summed over {parts}")
            if scaled := self._writes(_SCALES).source:
                others.append(at("gradients are scaled", scaled))
            return Place(found.source, (unsummed, *others))
        changed = self._multiplies(_patterns(comparison, ("grad_norm",)))
        if changed is not None:
            return self._written(changed)
        # A norm that is wrong by the size of an axis is due to the gradients' reduction over it.
        # The gradients themselves do not show that, because clipping removes the factor.
        role, named = self.candidate.sizes.mesh.role, _patterns(comparison, ("grad_norm",))
        axes = {each.axis for each in named if role(each.axis) in ("dp", "cp")}
        reduced = [made for made in self.reductions if axes & {*made.axes}]
        if reduced and (factor is None or not factor.clips):
            return self._of(reduced)
        clip = self._writes(_SCALES)
        if self.norms and not (factor is not None and factor.clips == "right norm" and clip):
            return self._of(self.norms)
        return clip or self._does("norm", "step")

    def _writes(self, operations: Collection[str] = ()) -> Place:
        """The first source line that changes gradients in place.

        If `operations` is not empty, it changes them by one of these operations.
        """
        for site in self.sites:
            if site.what == "write" and (not operations or site.name in operations):
                return self._written(site)
        return NOWHERE

    def _reduction(self, comparison: Comparison, targets: Iterable[str]) -> Place:
        """The source line that reduces the gradients of `targets`, or applies a wrapper that does.

        A missing reduction has no line of its own.  If one is missing, the result is the line that
        reduces the same gradients over another axis, or else one that sets up a copy of the
        parameters on another stage, or a line that reduces, writes or uses any gradients.  A line
        that changes the gradients after their reduction comes before all of these.
        """
        targets = [*targets]
        if (changed := self.changed(comparison, targets)) is not None:
            return self._written(changed)
        if axis := never_reduced(self.candidate, comparison, targets):
            return self._unsynced(axis)
        patterns = [f.pattern for f in comparison.findings if f.pattern and f.verdict == "fail"]
        axes = {p.axis for p in patterns if p.name != "partial sum"} - {""}
        fitting, ignored = self._fitting(targets), self._ignored(targets)
        suspect = suspicion(self.reductions, *sizes_of(self.candidate, targets))
        missing = any(p.name == "partial sum" for p in patterns)
        ranked = sorted(
            fitting or self._possible(targets, self.reductions) or self.reductions,
            key=lambda made: (
                adds_up(made),
                () if missing else suspect(made),
                not axes & {*made.axes},
            ),
        )
        wrapper = next((site for site in self.sites if site.what == "wrapper"), None)
        role = self.candidate.sizes.mesh.role
        if wrapper is not None and not (fitting and {*map(role, ranked[0].axes)} != {"dp"}):
            does = "does not shard these parameters" if ignored else _REDUCES
            if is_fixture(wrapper.user or wrapper.at):
                return self._place(wrapper, f"applies {wrapper.name}, which reduces the gradients")
            line = wrapper.user or wrapper.at
            applied = through(wrapper, f"{wrapper.name} is applied here and {does}")
            return Place(line, (applied, *set_up_after(self.candidate, targets, line)))
        # A line that reduces only some of the gradients that are wrong together is not the cause.
        if ranked and (missing or not fitting or not suspect(ranked[0])[1]):
            return self._of(ranked)
        written = copies(self.candidate, targets) or self._writes()
        return written or self._uncalled(unsummed(comparison, targets), targets)

    def _accumulation(self) -> Place:
        """The source line that clears gradients between two backwards, or starts a backward."""
        cleared = (s for s in self.sites if s.what == "clear" and s not in self.expected)
        site = next(cleared, None)
        return self._does("backward") if site is None else self._place(site, _DOES["clear"])

    def _unsynced(self, axis: str) -> Place:
        """The source line that calls `no_sync`, or starts the last backward, which never reduces.

        `axis` is the axis over which torch's wrapper would reduce.
        """
        site = next((site for site in self.sites if site.what == "no_sync"), None)
        starts = [site for site in self.sites if site.what == "backward"]
        if not (site or starts):
            return self._does("step")
        does = "calls no_sync" if site is not None else _DOES["backward"]
        wrapper = next(site for site in self.sites if site.what == "wrapper")
        return self._place(site or starts[-1], does).and_also(
            Clause(f"no reduction over {axis} was seen in the step"),
            at(f"{wrapper.name} is applied", wrapper.user or wrapper.at),
        )

    def _uncalled(self, axis: str, targets: Sequence[str]) -> Place:
        """The source lines between which a call is missing that sums gradients over `axis`.

        They start the last backward and step the optimizer.  If `axis` is "", or if no backward is
        known, it is the latter alone.
        """
        starts = [site for site in self.sites if site.what == "backward"]
        step = self._does("step")
        if not (axis and starts and step):
            return step
        of = f"gradient{'s' if len(targets) > 1 else ''} of {name_list(targets, 'parameter')}"
        sums, between = f" sums the {of} over {axis}", "no call between it and the optimizer's step"
        start = self._place(starts[-1], _DOES["backward"])
        return start.and_also(at(between, step.source, more=sums))

    def _fitting(self, targets: Iterable[str]) -> list[Reduction]:
        """The recorded reductions that possibly reduce the gradients of the parameters `targets`.

        `targets` are paths.  A reduction is chosen by its number of elements, N, in two cases.
        Either one of `targets` has N elements on some rank, or no parameter of the model has N
        elements.  In the second case the reduction is of a bucket of several gradients, which may
        contain any parameter's gradient.  A reduction whose N is unknown is chosen too.
        """
        paths = {*targets}
        sizes, others = sizes_of(self.candidate, paths)
        every = sizes | others
        return [
            made
            for made in not_of_others(self.candidate, self.reductions, paths)
            if made.numel is None or made.numel in sizes or made.numel not in every
            if made.numel in sizes or self._possible(paths, [made])
        ]

    def _possible(
        self, targets: Collection[str], reductions: Sequence[Reduction]
    ) -> list[Reduction]:
        """The reductions that may be of `targets`: not of others, nor of FSDP2 if it shards none.

        FSDP2 reduces by a reduce-scatter what it shards, but not its `ignored_params`.
        """
        able = not_of_others(self.candidate, reductions, targets)
        scattered = self._ignored(targets)
        return [m for m in able if not (scattered and m.call.startswith("reduce_scatter"))]

    def _ignored(self, targets: Collection[str]) -> bool:
        """Whether `fully_shard` is applied to other parameters than `targets`, and to none of them.

        `targets` are paths of parameters; False if there are none.
        """
        if not any(site.what == "wrapper" and site.name == "fully_shard" for site in self.sites):
            return False
        found = [
            event.layout_source
            for rank in self.candidate.ranks
            for id, event in rank.tensors.items()
            if id.kind == "param" and id.path in targets
        ]
        return bool(found) and "dtensor" not in found

    def _of(self, ranked: Sequence[Reduction]) -> Place:
        """The source line of the first reduction, or the user's line that called a library."""
        made = ranked[0]
        if own(made.caller):
            return Place(made.caller, (at(str(made), made.site), *unwaited(made)))
        called = Clause(str(made), ((made.site, str(made)),)).called_at(made.caller)
        return Place(made.site, (called, *unwaited(made), *self.program_of(made.site)))

    def _optimizer(self) -> Place:
        found = self._does("step")
        for stepper in (site for site in self.sites if site.what == "stepper"):
            return found.and_also(step_of(stepper, self.sites))
        made = next((site for site in self.sites if site.what == "optimizer"), None)
        if made is not None and not found:
            return self._place(made, f"constructs {made.name}")
        line = "" if made is None else made.user if made.user not in ("", found.source) else made.at
        if made is None or is_fixture(line):
            return found
        return found.and_also(at(f"{made.name} is constructed", line, kind="construction"))

    def _written(self, site: Site) -> Place:
        """The place of a line that changes gradients in place."""
        return self._place(site, f"changes gradients by {site.name}")

    def _place(self, site: Site, does: str) -> Place:
        """The user's line, or a framework's line with that of the user's program; what it does.

        Lines of this package's loops do not stand alone, because users have not written them.
        """
        if site.user:
            return Place(site.user, (through(site, does),))
        program = program_line(self.program)
        if is_fixture(site.at) and program:
            loop = at(f"the loop that trains it {does}", site.at)
            return self._program().and_also(loop)
        return Place(site.at, (Clause(does), *self.program_of(site.at)))

    def _program(self) -> Place:
        """The line of the program's function, or its script."""
        return Place(program_line(self.program), (Clause("the program"),))

    def program_of(self, source: str) -> list[Clause]:
        """The clause on the line of the user's program, if `source` is not in the user's code."""
        program = "" if own(source) else program_line(self.program)
        return [at("the program", program, by=" is at ")] if own(program) else []


def _patterns(
    comparison: Comparison, kinds: Collection[str], paths: Collection[str] = ()
) -> list[Pattern]:
    """The patterns of wrong tensors of some kinds, of all paths if there are no `paths`."""
    return [
        f.pattern
        for f in comparison.findings
        if f.verdict == "fail" and f.pattern is not None and f.where is not None
        if f.where.kind in kinds and (not paths or f.where.path in paths)
    ]
