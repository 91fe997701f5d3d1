"""Describes gradients of which every micro-batch is right, but not what the optimizer receives.

The program may lose some micro-batches before the reduction, or never reduce, or reduce wrongly.
Called by `judges.compare.localize.blame`, `judges.compare.localize.code.places` and
`judges.compare.localize.description`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace

from pytest_trainsafe.core.finding import Finding, Pattern
from pytest_trainsafe.core.usage import name_list
from pytest_trainsafe.judges.compare.comparison import Comparison
from pytest_trainsafe.judges.compare.explain.common_factor import reference_clips
from pytest_trainsafe.judges.compare.factor import factor_cause
from pytest_trainsafe.judges.compare.fault.clause import at
from pytest_trainsafe.judges.compare.guards.clip_limit import limits_apart
from pytest_trainsafe.judges.compare.localize.code.lines import Place, through
from pytest_trainsafe.judges.compare.localize.inputs import Compared
from pytest_trainsafe.judges.compare.patterns.microbatches import LOST
from pytest_trainsafe.judges.compare.rung import RungTraces
from pytest_trainsafe.trace.facts import MAX_SIZES, CollectiveEvent, Reduction, Site
from pytest_trainsafe.trace.reader import Trace
from pytest_trainsafe.trace.schema import TensorEvent

#: The kinds of gradients after their reduction.
REDUCED = frozenset({"main_grad", "unclipped_grad"})
#: How the names of reductions end that sum or average; gradients rarely need any other.
_SUMS = ("(SUM)", "(AVG)")


def lost(comparison: Comparison, targets: Collection[str]) -> str:
    """Which micro-batches the reduced gradients of `targets` lack, in words.

    "" if they lack none, if they are all those of some ranks, so that the reduction may be wrong,
    or if the ranks hold different gradients, as they do if the reduction comes too early.
    """
    failing = _failing(comparison, targets)
    patterns = [f.pattern for f in failing if f.pattern is not None]
    if not patterns or any(pattern.cause != LOST for pattern in patterns):
        return ""
    return "" if any(f.check == "replicas" for f in failing) else patterns[0].text


def unsummed(
    comparison: Comparison, targets: Iterable[str], kinds: Collection[str] = REDUCED
) -> str:
    """The axis over which the ranks hold terms of the gradients of `targets`, which are of `kinds`.

    "" if there is none or more than one, or if some are known to be wrong in another way.
    """
    failing = _failing(comparison, targets, kinds)
    patterns = [f.pattern for f in failing if f.pattern is not None]
    axes = {pattern.axis for pattern in patterns if pattern.name == "partial sum"}
    alone = all(pattern.name == "partial sum" for pattern in patterns) and len(axes) == 1
    return axes.pop() if alone else ""


def never_reduced(candidate: Trace, comparison: Comparison, targets: Collection[str]) -> str:
    """The axis over which a DistributedDataParallel never reduced the gradients of `targets`.

    "" unless the ranks hold terms of them over an axis of role dp, and no forward of the program
    ran such that a backward of the wrapper would reduce.
    """
    axis = unsummed(comparison, targets)
    role = candidate.sizes.mesh.role
    if not axis or role(axis) != "dp" or candidate.point.get("compile", False):
        return ""
    sites = [site for rank in candidate.ranks for site in rank.events_of(Site)]
    wrappers = {site.name for site in sites if site.what == "wrapper"}
    synced = any(site.what == "sync" for site in sites)
    made = (each for rank in candidate.ranks for each in rank.events_of(Reduction))
    reduced = any(each.of == "gradients" and axis in each.axes for each in made)
    return axis if wrappers == {"DistributedDataParallel"} and not synced and not reduced else ""


def able_to_sum(candidate: Trace, comparison: Comparison, targets: Collection[str]) -> Trace:
    """The trace, without the optimizer's own reductions if these do not reduce `targets`.

    They do not if the ranks' terms of these gradients count as wrong, as they do if nothing adds
    them up before the parameters are updated.
    """
    return reduced_before_step(candidate) if unsummed(comparison, targets) else candidate


def reduced_before_step(trace: Trace) -> Trace:
    """A copy of a trace without the reductions that the optimizer's step makes."""
    ranks = []
    for rank in trace.ranks:
        kept = [made for made in rank.events_of(Reduction) if not made.in_step]
        ranks.append(replace(rank, facts={**rank.facts, Reduction: [*kept]}))
    return trace.with_ranks(ranks)


def reduced_wrongly(
    rung: RungTraces, comparison: Comparison, compared: Compared, names: Sequence[str]
) -> str:
    """The evidence that the reduction of the gradients of the parameters `names` is wrong."""
    traces = rung.candidate, rung.reference
    if [any(id.kind == "main_grad" for id in trace.ids()) for trace in traces] == [False, True]:
        return "the optimizer receives no gradient"
    uncompared = [name for name in names if not compared.gradient(name)]
    if len(uncompared) == len(names):
        text = (
            "the gradient after the reduction differs, and no micro-batch's gradient of "
            f"{'it' if len(names) == 1 else 'them'} was compared"
        )
    else:
        text = "each micro-batch's gradient agrees, but the gradient after the reduction does not"
        if uncompared:
            text += (
                " (not compared: the micro-batches' gradients of "
                f"{name_list(uncompared, 'parameter')})"
            )
    factor = comparison.factor
    if factor is not None and factor.clips and factor.apart:
        text += f"; the other {len(factor.scaled)} gradients differ only by the clipping factor"
    elif factor is not None and len(names) == len(factor.scaled):
        text += ", by the same factor for all"
    return text


def _failing(
    comparison: Comparison, targets: Iterable[str], kinds: Collection[str] = REDUCED
) -> list[Finding]:
    paths = {*targets}
    return [
        f
        for f in comparison.findings
        if f.verdict == "fail" and f.where is not None
        if f.where.kind in kinds and f.where.path in paths
    ]


def patterns_of(
    comparison: Comparison, kinds: Collection[str], paths: Collection[str] = ()
) -> list[Pattern]:
    """The patterns of wrong tensors of some kinds, of all paths if there are no `paths`."""
    return [
        f.pattern
        for f in comparison.findings
        if f.verdict == "fail" and f.pattern is not None and f.where is not None
        if f.where.kind in kinds and (not paths or f.where.path in paths)
    ]


def loss_text(program: str, after: str, candidate: Trace, comparison: Comparison) -> str:
    """The sentence on a wrong gradient that reaches the model from outside.

    `after` is the last compared module if the model's own output was not compared, else "".
    """
    wrong = f"the loss that {program} differentiates is wrong"
    if not after:
        return (
            f"{wrong}, outside of the model: the gradient that reaches the model's output differs"
            f"{_averaged(candidate, comparison)}"
        )
    return (
        f"{wrong}, or what the model does after {after}: the gradient that reaches the output of "
        f"{after} differs, and no later output was compared{_averaged(candidate, comparison)}"
    )


def _averaged(candidate: Trace, comparison: Comparison) -> str:
    """A clause on a wrapper that averages gradients, "" unless it is given scaled ones."""
    wrapper = next(iter(candidate.ranks[0].note("averages")), "")
    if not wrapper or not _scaled(comparison):
        return ""
    text = (
        f"; {wrapper} averages gradients over ranks, so a rank divides its loss by the number of "
        "its own micro-batches, also on a single device"
    )
    if axis := left_out(candidate, comparison):
        text += f". Or {wrapper} has to reduce the gradients over {axis} too: no call does"
    return text


def left_out(candidate: Trace, comparison: Comparison) -> str:
    """The axis whose size is the factor of scaled gradients that reach a wrapped model.

    "" if there is none, or if some collective reduces gradients over the axis.
    """
    axes = {finding.pattern.axis for finding in _scaled(comparison) if finding.pattern}
    role = candidate.sizes.mesh.role
    if len(axes) != 1 or role(axis := axes.pop()) not in ("dp", "cp"):
        return ""
    made = (each for rank in candidate.ranks for each in rank.events_of(Reduction))
    return "" if any(each.of == "gradients" and axis in each.axes for each in made) else axis


def with_wrapper(candidate: Trace, comparison: Comparison, loss: Place) -> Place:
    """The line of a wrapper that reduces over too few ranks, and of the loss; else of the loss."""
    sites = (site for rank in candidate.ranks for site in rank.events_of(Site))
    wrapper = next((site for site in sites if site.what == "wrapper"), None)
    axis = left_out(candidate, comparison)
    if not axis or wrapper is None:
        return loss
    does = f"{wrapper.name} is applied here, and no call reduces gradients over {axis}"
    place = Place(wrapper.user or wrapper.at, (through(wrapper, does),))
    return place.and_also(at("or the loss is wrong: it is made", loss.source)) if loss else place


def _scaled(comparison: Comparison) -> list[Finding]:
    """The wrong gradients of activations that are multiples of the reference's."""
    return [
        f
        for f in comparison.findings
        if f.verdict == "fail" and f.where and f.where.kind == "activation_grad"
        if f.pattern is not None and f.pattern.name == "scaled"
    ]


def norm_text(comparison: Comparison, rung: RungTraces, compared: Compared) -> str:
    """The sentence on a wrong gradient norm or a wrong clip."""
    factor, wrong = comparison.factor, comparison.wrong
    if factor is not None and factor.clips:
        agree = compared.has("param_grad") and not wrong["param_grad"]
        before = "each micro-batch's gradient agrees; " if agree else ""
        return f"{before}{factor_cause(factor)}: {factor.explanation}"
    if not wrong["grad_norm"]:
        return "the clipping is wrong: gradients agree before it, and differ after it"
    main = (id for id in rung.reference.ids() if id.kind == "main_grad")
    if reference_clips(rung, main):
        return (
            "the gradient norm is wrong, or all gradients are scaled before the norm is computed: "
            "gradients are compared after clipping, which hides such a factor"
        )
    right = compared.has("main_grad") and not (wrong["main_grad"] or wrong["unclipped_grad"])
    if right and (apart := limits_apart(rung.candidate, rung.reference)):
        return f"the gradients are right, and clipped at a norm of {apart[0]} instead of {apart[1]}"
    return f"the gradient norm is wrong{', although the gradients are right' if right else ''}"


def adds_up(made: Reduction) -> bool:
    """Whether a reduction sums or averages; one of another kind has its kind in its name."""
    return made.call.endswith(_SUMS) or "(" not in made.call


def once(reductions: Iterable[Reduction]) -> list[Reduction]:
    """The reductions, without repetitions: of several that differ only in size, one is kept."""
    found = {(made.call, made.axes, made.site, made.caller): made for made in reductions}
    return list(found.values())


def not_of_others(
    candidate: Trace, reductions: Iterable[Reduction], targets: Collection[str]
) -> list[Reduction]:
    """The reductions, without those that were given the gradients of other parameters alone.

    `targets` are paths of parameters.  A call that was given a tensor of unknown name, such as a
    bucket, may reduce any gradient.
    """
    given = given_at(candidate)
    wanted = {f"{path}.grad" for path in targets}

    def of_others(made: Reduction) -> bool:
        names = given.get(made.site, {""})
        return all(name.endswith(".grad") for name in names) and not names & wanted

    return [made for made in reductions if not of_others(made)]


def given_at(candidate: Trace) -> dict[str, set[str]]:
    """By line, the names of the tensors that the collectives of the steps were given there."""
    given: dict[str, set[str]] = {}
    for rank in candidate.ranks:
        for call in rank.events_of(CollectiveEvent):
            if call.step is not None:
                given.setdefault(call.site, set()).add(call.name)
    return given


def before_gradients(candidate: Trace) -> set[str]:
    """The lines of collectives that all run before the first gradient of their step arrives.

    They count tokens, for instance, and reduce no gradient norm.  A rank that records no gradient
    of a micro-batch does not show when its gradients arrive.
    """
    before: set[str] = set()
    after: set[str] = set()
    for rank in candidate.ranks:
        shown = {id.step for id in rank.tensors if id.kind == "param_grad"}
        arrived: set[int] = set()
        for event in rank.events:
            if isinstance(event, TensorEvent) and event.id.kind == "param_grad":
                arrived.add(event.id.step)
            elif isinstance(event, CollectiveEvent) and event.step is not None:
                early = event.step in shown - arrived and not event.backward
                (before if early else after).add(event.site)
    return before - after


def sizes_of(candidate: Trace, targets: Collection[str]) -> tuple[set[int], set[int]]:
    """The numbers of elements of the parameters `targets`, which are paths, and of all others.

    They are those of the ranks' own parts.  A number may be in both.
    """
    own: set[int] = set()
    others: set[int] = set()
    for rank in candidate.ranks:
        for id, event in rank.tensors.items():
            if id.kind == "param":
                (own if id.path in targets else others).add(math.prod(event.shape))
    return own, others


def suspicion(
    reductions: Iterable[Reduction], wrong: set[int], right: set[int]
) -> Callable[[Reduction], tuple[bool, int]]:
    """A sort key of reductions: the line that is most likely wrong comes first.

    Lines that reduce no right gradient come first, and of them those that reduce most wrong ones.
    `wrong` and `right` are the numbers of elements of parameters whose gradients are wrong and
    right.  A call with another number, or an unknown one, is of a bucket: of any gradients; and a
    line with MAX_SIZES numbers may reduce gradients of more.
    """
    sizes: dict[tuple[str, tuple[str, ...], str], set[int | None]] = {}

    def line(made: Reduction) -> tuple[str, tuple[str, ...], str]:
        return made.site, made.axes, made.caller

    for made in reductions:
        sizes.setdefault(line(made), set()).add(made.numel)

    def key(made: Reduction) -> tuple[bool, int]:
        found = sizes[line(made)]
        of_any = bool(found - wrong - right) or len(found) >= MAX_SIZES
        return bool(found & (right - wrong)), 0 if of_any else len(wrong - found)

    return key


def summed_at(
    candidate: Trace,
    reductions: Iterable[Reduction],
    faults: Iterable[tuple[str, str]],
    source: str,
) -> tuple[str, ...]:
    """The axes over which the line `source` sums gradients; () unless it sums wrong ones alone.

    `faults` has the phase and the parameter of each wrong gradient.  A bucket may hold any
    gradient, and if all are wrong, the line is no other than the rest.
    """
    targets = {target for phase, target in faults if phase == "reduction"}
    wrong, right = sizes_of(candidate, targets)
    here = [made for made in reductions if source in (made.caller, made.site) and adds_up(made)]
    axes = {made.axes for made in here}
    alone = right - wrong and all(made.numel in wrong for made in here)
    return axes.pop() if len(axes) == 1 and alone else ()
