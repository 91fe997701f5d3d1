"""Finds the source line of a fault outside the modules, such as a reduction or an optimizer step.

Reads the lines that the recorder stored, for `localize/description.py` and `localize/search.py`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace

from msgspec import structs

from pytest_trainsafe.core.code_files import is_fixture
from pytest_trainsafe.core.finding import Pattern
from pytest_trainsafe.core.tensor_id import TensorId
from pytest_trainsafe.core.usage import name_list
from pytest_trainsafe.judges.compare.comparison import Comparison
from pytest_trainsafe.judges.compare.explain.held import unheld_in_both
from pytest_trainsafe.judges.compare.fault.clause import Clause, at
from pytest_trainsafe.judges.compare.guards.clip_limit import limits_apart
from pytest_trainsafe.judges.compare.localize.blame import Phase
from pytest_trainsafe.judges.compare.localize.clearing import of_clearing
from pytest_trainsafe.judges.compare.localize.code.drifted import Drift
from pytest_trainsafe.judges.compare.localize.code.lines import (
    NOWHERE,
    Place,
    has_whole_steps_only,
    of_reported,
    own,
    through,
    unwaited,
    writes_of,
)
from pytest_trainsafe.judges.compare.localize.code.owners import copies, set_up_after
from pytest_trainsafe.judges.compare.localize.code.program_lines import DOES, ProgramLines
from pytest_trainsafe.judges.compare.localize.code.trained import TrainedApart
from pytest_trainsafe.judges.compare.localize.code.unheld import UnheldLines
from pytest_trainsafe.judges.compare.localize.conditions import Condition, evaluations
from pytest_trainsafe.judges.compare.localize.gradients import (
    adds_up,
    before_gradients,
    never_reduced,
    not_of_others,
    once,
    patterns_of,
    sizes_of,
    suspicion,
    unsummed,
)
from pytest_trainsafe.judges.compare.patterns.microbatches import WEIGHTED
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


class Places(ProgramLines):
    """The source lines that a candidate's trace recorded, searched for the line at fault.

    Lines that change gradients in the same way in the `reference` are not at fault.
    """

    def __init__(self, candidate: Trace, program: Program, reference: Trace | None = None) -> None:
        super().__init__(candidate, program)
        self.reference = reference
        self.expected = set() if reference is None else writes_of(reference)
        self.reductions = self._reductions("gradients")
        early = before_gradients(candidate)
        self.norms = [made for made in self._reductions("norm") if made.site not in early]

    def of_phase(self, phase: Phase, comparison: Comparison, targets: Iterable[str] = ()) -> Place:
        """The source line of a fault that is not in a module but in the program's own code.

        `phase` is the phase of the step in which the fault is, and `targets` has the paths of the
        wrong parameters.
        """
        match phase:
            case "data" | "forward":
                found = self.does("model", "loss")
            case "backward":
                found = self.does("backward")
            case "loss":
                found = of_reported(self.does("loss"))
            case "norm":
                found = self._norm(comparison)
            case "reduction":
                found = self._reduction(comparison, targets)
            case "accumulation":
                found = self._accumulation()
            case "clearing":
                failing = (f.where for f in comparison.findings if f.verdict == "fail")
                step = min((id.step for id in failing if id is not None), default=0)
                found = of_clearing(self.candidate, self.reference, step, [*targets])
                found = found or self.does("step")
            case "optimizer":
                names = [*targets]
                found = Drift(self.candidate, self.reference, comparison, names).place()
                found = found or self.trained(names).place() or self.optimizer()
            case "unheld":
                found = UnheldLines(self.candidate, self.reference, comparison, {*targets}).place()
            case _:
                return NOWHERE
        return found or self.program_itself()

    def trained(self, names: Sequence[str]) -> TrainedApart:
        """Which Run alone trains the parameters `names`."""
        return TrainedApart(self.candidate, self.reference, names)

    def changed(self, comparison: Comparison, targets: Iterable[str]) -> Site | None:
        """The line that changes the gradients of `targets` wrongly after their backward.

        `targets` has the paths of parameters.  If the gradients are multiples of the reference's,
        it is a line that multiplies by this number, and if some micro-batches have a wrong weight
        in them, one between two backwards.  If no reduction makes their error, it is one that does
        not multiply, where a wrapper of torch reduces, or one that does, if nothing reduces them
        and a part is wrong.
        """
        targets = [*targets]
        patterns = patterns_of(comparison, ("unclipped_grad", "main_grad"), {*targets})
        names = {pattern.name for pattern in patterns}
        found = None if "partial sum" in names else self._multiplies(patterns)
        if found is None and any(pattern.cause == WEIGHTED for pattern in patterns):
            found = next(self._unexpected("early"), None)
        if found is not None or _OF_REDUCTIONS & names:
            return found
        wrapped = any(site.what == "wrapper" for site in self.sites)
        own = (s for s in self._unexpected() if not s.user and (s.name in _SCALES) != wrapped)
        alone = names == {"confined"} and not self._possible(targets, self.reductions)
        return next(own, None) if wrapped or alone else None

    def omitted(self, comparison: Comparison, targets: Iterable[str]) -> Site | None:
        """The reference's line that scales gradients by the factor that those of `targets` lack.

        `targets` has the paths of parameters.  The candidate has no such line: it does not divide
        by the number of samples, for example, or by the scale of the loss.
        """
        patterns = patterns_of(comparison, ("unclipped_grad", "main_grad"), {*targets})
        factor = next((pattern.factor for pattern in patterns if pattern.factor), 0.0)
        own = {(site.at, site.name) for site in self.sites if site.what == "write"}
        lines = (site for site in self.expected if site.what == "write" and site.factor)
        return next(
            (
                site
                for site in sorted(lines, key=lambda each: each.at)
                if (site.at, site.name) not in own and abs(site.factor * factor - 1) <= _NEAR
            ),
            None,
        )

    def rescaled(self, comparison: Comparison, targets: Sequence[str]) -> str:
        """What a line does, or should do, with the gradients of `targets`; "" if none is at fault.

        The words follow "the gradients".
        """
        if self.changed(comparison, targets) is not None:
            return "are changed between their backward and the optimizer's step"
        if self.omitted(comparison, targets) is not None:
            return "lack a factor that a line of the reference gives them, which does not run here"
        return ""

    def _multiplies(self, patterns: Iterable[Pattern]) -> Site | None:
        """The line that multiplies gradients by the factor of the first pattern that has one."""
        factor = next((pattern.factor for pattern in patterns if pattern.factor), 0.0)
        near = _NEAR * abs(factor)
        unexpected = self._unexpected() if factor else iter(())
        return next((site for site in unexpected if abs(site.factor - factor) <= near), None)

    def _unexpected(self, what: What = "write") -> Iterator[Site]:
        """The lines that change gradients in place, and not in the same way in the reference."""
        return (site for site in self.sites if site.what == what and not self._is_expected(site))

    def _is_expected(self, site: Site) -> bool:
        """Whether a line of the reference does the same, by a number that rounding may change."""
        near = _NEAR * abs(site.factor)
        bare = structs.replace(site, factor=0.0)
        return any(
            structs.replace(each, factor=0.0) == bare and abs(each.factor - site.factor) <= near
            for each in self.expected
        )

    def of_condition(self, condition: Condition, module: str) -> Place:
        """The source line that changes parameters before a forward, or switches a module's mode."""
        if condition == "altered":
            return self.does("alter") or self.program_itself()
        site = evaluations(self.candidate).get(module) if condition == "evaluated" else None
        if site is None or not site.at:
            return NOWHERE
        return self.place(site, DOES["mode"])

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
        return self.does("watch") if any(each.given for each in facts) else NOWHERE

    def summing(self, axis: str, targets: Sequence[str] = ()) -> Place:
        """The line that sums gradients over `axis`, or sets up a copy of `targets` along it."""
        made = [each for each in self.reductions if axis in each.axes and adds_up(each)]
        return self._of(made) if made else copies(self.candidate, targets, axis)

    def listed(
        self, phase: Phase, targets: Iterable[str], comparison: Comparison | None = None
    ) -> list[Reduction]:
        """The collectives that the report lists for a fault.

        For the phase "norm", the result has the collectives that reduce the gradient norm.  For any
        other phase, the result has those that possibly reduce the gradients of `targets`, paths of
        parameters.  Those that were given the gradients of other parameters alone do not, nor, by a
        `comparison` in which the ranks hold terms over an axis, those over this axis.
        """
        if phase == "norm":
            return once(self.norms)
        targets = [*targets]
        axis = "" if comparison is None else unsummed(comparison, targets)
        found = self._fitting(targets) or self._possible(targets, self.reductions)
        return once(made for made in found if axis not in made.axes)

    def _reductions(self, of: str) -> list[Reduction]:
        ranks = self.candidate.ranks
        made = dict.fromkeys(each for rank in ranks for each in rank.events_of(Reduction))
        return [each for each in made if each.of == of]

    def _norm(self, comparison: Comparison) -> Place:
        """The source line that reduces the gradient norm, or that scales gradients by it.

        If ranks report the norms of their own parts, it is the line that reports the norm, unless
        some line reduces the norm over other axes.
        """
        factor = comparison.factor
        parts = factor.of_parts if factor is not None and factor.clips != "right norm" else ""
        if parts and not self.norms and (found := self.does("norm")):
            own, *others = found.clauses
            unsummed = replace(own, text=f"{own}, which is not summed over {parts}")
            if scaled := self._writes(scales=True).source:
                others.append(at("gradients are scaled", scaled))
            return Place(found.source, (unsummed, *others))
        clip, right = self._writes(scales=True), not comparison.wrong["unclipped_grad"]
        if clip and right and self.reference and limits_apart(self.candidate, self.reference):
            return clip
        wrong = ("grad_norm",) if comparison.wrong["grad_norm"] else ("main_grad",)
        changed = self._multiplies(patterns_of(comparison, wrong))
        if changed is not None:
            return self.written(changed)
        # A norm that is wrong by the size of an axis is due to the gradients' reduction over it.
        # The gradients themselves do not show that, because clipping removes the factor.
        role, named = self.candidate.sizes.mesh.role, patterns_of(comparison, ("grad_norm",))
        axes = {each.axis for each in named if role(each.axis) in ("dp", "cp")}
        reduced = [made for made in self.reductions if axes & {*made.axes}]
        if reduced and (factor is None or not factor.clips):
            return self._of(reduced)
        if self.norms and not (factor is not None and factor.clips == "right norm" and clip):
            return self._of(self.norms)
        return clip or self.does("norm", "step")

    def _writes(self, *, scales: bool | None = None) -> Place:
        """The first source line that changes gradients in place; NOWHERE if there is none.

        With scales=False, it is the first line that does not multiply or divide them.  With
        scales=True, it is the last line that does: clipping follows an average.
        """
        for site in reversed(self.sites) if scales else self.sites:
            if site.what == "write" and scales in (None, site.name in _SCALES):
                return self.written(site)
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
            return self.written(changed)
        if (omitted := self.omitted(comparison, targets)) is not None:
            return self.place(
                omitted, f"changes gradients by {omitted.name} in the reference alone"
            )
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
                return self.place(wrapper, f"applies {wrapper.name}, which reduces the gradients")
            line = wrapper.user or wrapper.at
            applied = through(wrapper, f"{wrapper.name} is applied here and {does}")
            return Place(line, (applied, *set_up_after(self.candidate, targets, line)))
        # A line that reduces only some of the gradients that are wrong together is not the cause.
        if ranked and (missing or not fitting or not suspect(ranked[0])[1]):
            return self._of(ranked)
        # A line that scales gradients, as clipping does, takes no sum of them away.
        written = copies(self.candidate, targets) or self._writes(scales=False if missing else None)
        return written or self._uncalled(unsummed(comparison, targets), targets)

    def _accumulation(self) -> Place:
        """The source line that clears gradients between two backwards, or starts a backward."""
        cleared = (site for site in self.sites if site.what == "clear")
        site = next((site for site in cleared if site not in self.expected), None)
        return self.does("backward") if site is None else self.place(site, DOES["clear"])

    def _unsynced(self, axis: str) -> Place:
        """The source line that calls `no_sync`, or starts the last backward, which never reduces.

        `axis` is the axis over which torch's wrapper would reduce.
        """
        site = next((site for site in self.sites if site.what == "no_sync"), None)
        starts = [site for site in self.sites if site.what == "backward"]
        if site is None and not starts:
            return self.does("step")
        does = "calls no_sync" if site is not None else DOES["backward"]
        wrapper = next(site for site in self.sites if site.what == "wrapper")
        return self.place(site or starts[-1], does).and_also(
            Clause(f"no reduction over {axis} was seen in the step"),
            at(f"{wrapper.name} is applied", wrapper.user or wrapper.at),
        )

    def _uncalled(self, axis: str, targets: Sequence[str]) -> Place:
        """The source lines between which a call is missing that sums gradients over `axis`.

        They start the last backward and step the optimizer.  If `axis` is "", or if no backward is
        known, it is the latter alone.
        """
        starts = [site for site in self.sites if site.what == "backward"]
        step = self.does("step")
        if not (axis and starts and step):
            return step
        of = f"gradient{'s' if len(targets) > 1 else ''} of {name_list(targets, 'parameter')}"
        sums, between = f" sums the {of} over {axis}", "no call between it and the optimizer's step"
        start = self.place(starts[-1], DOES["backward"])
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
