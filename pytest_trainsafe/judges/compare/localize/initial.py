"""Finds faults without a search: in initial parameters, or if no micro-batch is marked.

Before the first step no tensor passes between modules.  If a program marks no micro-batch, no
module is recorded.  In both cases there is nothing to replace between modules.  Called by `search`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from pytest_trainsafe.core.code_files import is_fixture
from pytest_trainsafe.core.tensor_id import INITIAL, TensorId
from pytest_trainsafe.core.usage import name_list
from pytest_trainsafe.judges.compare.comparison import Comparison
from pytest_trainsafe.judges.compare.explain.held import parameter_of, unheld_in_both
from pytest_trainsafe.judges.compare.explain.module_code import module_code
from pytest_trainsafe.judges.compare.fault.clause import Clause, at
from pytest_trainsafe.judges.compare.fault.located import Located
from pytest_trainsafe.judges.compare.localize.budget import Budget, Deadline
from pytest_trainsafe.judges.compare.localize.code.drawn import drawn_at
from pytest_trainsafe.judges.compare.localize.code.lines import NOWHERE, Place, own, set_up
from pytest_trainsafe.judges.compare.localize.code.places import Places
from pytest_trainsafe.judges.compare.localize.code.unheld import UnheldLines
from pytest_trainsafe.judges.compare.localize.scales import scales
from pytest_trainsafe.judges.compare.rung import RungTraces
from pytest_trainsafe.launch import GroupFailure
from pytest_trainsafe.trace.facts import Overwritten, SetUp, Site
from pytest_trainsafe.trace.reader import Trace, TraceError

if TYPE_CHECKING:
    from pytest_trainsafe.runs.traces import Traces

#: The kinds of tensors that an optimizer step produces for each parameter.
_STEPPED = frozenset({"param", "master_param", "update", "optimizer_state"})

#: The checks of parts that are too many or too few rows, so that no value is wrong.
_OF_SIZES = frozenset({"overlap", "hole"})

#: The kinds of gradients after the backward.
_GRADIENTS = frozenset({"main_grad", "unclipped_grad"})


def initial(failed: Comparison, candidate: Trace, reference: Trace | None = None) -> Located:
    """The report's row on parameters that no rank holds, or else on wrong initial values.

    `reference` shows the whole shapes, by which the line is found that draws wrong values.
    """
    findings = [
        (f.where, f.check)
        for f in failed.findings
        if f.verdict == "fail" and f.where is not None and f.where.step == INITIAL
    ]
    missing = [id for id, check in findings if check == "missing"]
    if missing:
        return _missing(missing, candidate)
    wrong = list(dict.fromkeys(id for id, _ in findings))
    place = drawn_at(failed, wrong[0], candidate, reference, _code(wrong[0].module, candidate))
    names = list(dict.fromkeys(id.path for id in wrong))
    sized = all(check in _OF_SIZES for _, check in findings)
    what, does = (
        ("sizes", "pads or shards") if sized else ("values", "initializes, loads or shards")
    )
    text = (
        f"the initial parameters, before the first step: the {what} of "
        f"{name_list(names, 'parameter')}{_on_stages(wrong, candidate)} differ from the "
        f"reference's, so the code that {does} the model is wrong"
    )
    if changed := _changed_since(candidate, names):
        them = "it" if len(names) == 1 else "them"
        text = text.partition(", so the code")[0]
        text += f": the program changes {them} in place between ctx.initialize and ctx.watch"
        place = changed
    return _at(place, [("faulty", text)], [("initial", name) for name in names])


def _changed_since(candidate: Trace, names: Sequence[str]) -> Place:
    """The line that calls ctx.watch, if all parameters `names` were changed after ctx.initialize.

    NOWHERE if some were not, or if the line is not known.
    """
    events = (event for rank in candidate.ranks for event in rank.events_of(Overwritten))
    if not {*names} <= {name for event in events for name in event.since}:
        return NOWHERE
    sites = (site for rank in candidate.ranks for site in rank.events_of(Site))
    line = next((site.user or site.at for site in sites if site.what == "watch"), "")
    what = f"calls ctx.watch; {name_list(names, 'parameter')} changed between ctx.initialize and it"
    return Place(line, (Clause(what),)) if line else NOWHERE


def of_attribute(id: TensorId, candidate: Trace) -> Place | None:
    """The line of the module class whose parameter `id` has an attribute that declares its layout.

    NOWHERE if the class's code is not known; None if no attribute declares the layout.
    """
    holders = candidate.holders(id)
    if not holders or holders[0][1].layout_source != "attribute":
        return None
    return _code(id.module, candidate)


def _missing(missing: Iterable[TensorId], candidate: Trace) -> Located:
    held = _held(candidate)
    lacking: dict[str, TensorId] = {}
    for id in missing:
        lacking.setdefault(_outermost(id, held), id)
    names = list(lacking)
    modules = [name for name in names if name != lacking[name].path]
    text = (
        "the initial parameters, before the first step: no rank holds "
        f"{name_list(names, 'module' if len(modules) == len(names) else 'parameter')}"
    )
    rows = [("faulty", text)]
    place = _code(next(iter(lacking.values())).module, candidate)
    if candidate.sizes["pp"] > 1 and names[0] in modules:
        text += f"; the division into stages leaves it out: {_division(names[0], candidate)}"
        rows = [("faulty", text), ("axis", "pp, which divides the modules into stages")]
        place = _divided(names[0], candidate, place)
    return _at(place, rows, [("initial", name) for name in names])


def _at(
    place: Place, rows: Iterable[tuple[str, str]], faults: Iterable[tuple[str, str]] = ()
) -> Located:
    return Located(tuple(rows), place.source, place.clauses, tuple(faults))


def _divided(name: str, candidate: Trace, of_class: Place) -> Place:
    """The line that sets up the siblings of a missing module; `of_class` if it is not known."""
    around = f"{name.rpartition('.')[0]}."
    for rank in candidate.ranks:
        for each in rank.events_of(SetUp):
            if own(each.at) and each.module.startswith(around):
                what = Clause(f"sets up the modules of a stage, such as {each.module}")
                return Place(each.at, (what,))
    return of_class


def _code(module: str, candidate: Trace) -> Place:
    """The line of a module's class, or of its nearest parent that a rank has, and what it is.

    What it is names one more line, if one is known: the line at which the program makes a process
    group, on whose ranks the parameters of a module may depend, or else the line that set up the
    module.
    """
    modules = {name: event for rank in candidate.ranks for name, event in rank.modules.items()}
    cls, source = module_code(modules, module)
    if not source:
        return NOWHERE
    found = Place(source, (Clause(f"module class {cls}"),))
    sites = (site for rank in candidate.ranks for site in rank.events_of(Site))
    group = next((site.user or site.at for site in sites if site.what == "group"), "")
    if group and not is_fixture(group):
        return found.and_also(at("a process group is made", group, kind="made"))
    while module and module not in modules:
        module = module.rpartition(".")[0]
    return found.and_also(*set_up(candidate, module, source))


def _held(candidate: Trace) -> set[str]:
    """The modules that some rank has, with all their parents.

    A rank may have recorded only the parts of a module, so the module itself may not be listed.
    """
    held: set[str] = set()
    for rank in candidate.ranks:
        for name in (*rank.modules, *(id.module for id in rank.tensors if id.kind == "param")):
            while name and name not in held:
                held.add(name)
                name = name.rpartition(".")[0]
    return held


def _outermost(id: TensorId, held: set[str]) -> str:
    """Returns the outermost of those modules around a parameter that are missing in `held`.

    Returns the path of the parameter `id` if `held` contains all modules around it.
    """
    parts = id.module.split(".")
    for count in range(1, len(parts) + 1):
        name = ".".join(parts[:count])
        if name and name not in held:
            return name
    return id.path


def _division(name: str, candidate: Trace) -> str:
    """The siblings of a module on each stage: `in decoder.layers, rank 0 of pp has 0, 1`."""
    parent, _, _ = name.rpartition(".")
    inside = f"{parent}." if parent else ""
    stages: dict[int, dict[str, None]] = {}
    for rank in candidate.ranks:
        here = stages.setdefault(rank.coordinates["pp"], {})
        for module in rank.modules:
            child = module.removeprefix(inside).partition(".")[0]
            if module.startswith(inside) and child:
                here[child] = None
    divisions = [
        f"rank {stage} of pp has {', '.join(children) or 'none'}"
        for stage, children in sorted(stages.items())
    ]
    return f"in {parent or 'the root module'}, {'; '.join(divisions)}"


def _on_stages(wrong: Iterable[TensorId], candidate: Trace) -> str:
    """`, on rank 1 of pp,` if only some stages hold the wrong tensors; else ""."""
    stages = {rank.coordinates["pp"] for id in wrong for rank, _ in candidate.holders(id)}
    if not stages or len(stages) == candidate.sizes["pp"]:
        return ""
    return f", on rank {' and '.join(map(str, sorted(stages)))} of pp,"


def with_writes(
    candidate: Traces, reference: Traces, rung: RungTraces, failed: Comparison, budget: Budget
) -> Places:
    """The lines of a program that marked no micro-batch.

    If its gradients are multiples of the reference's, they include those that change gradients in
    place, which only Runs that replace tensors record: here those that the optimizer receives.
    """
    case, dtype = candidate.case, rung.candidate.manifest.dtype
    known = Places(rung.candidate, case.program, rung.reference)
    names = _multiples(failed)
    deadline = Deadline(budget.allows(case.settings.localize), candidate.runs.held_up)
    if not names or not deadline.seconds:
        return known
    try:
        scale = scales(reference.in_full().at(dtype), rung.candidate, main_gradients=True)
        replaced = tuple(sorted(scale.items()))
        runs = [each.rewritten(dtype, replaced) for each in (candidate, reference) if replaced]
        traces = [deadline.wait(run).trace for run in runs]
    except (GroupFailure, TimeoutError, TraceError):
        return known  # the result stands without these lines
    finally:
        budget.take(deadline.spent)
    found = Places(traces[0], case.program, traces[1]) if traces else known
    return found if found.rescaled(failed, names) else known


def _multiples(failed: Comparison) -> list[str]:
    """The parameters with wrong gradients, if these come first and the first is a multiple."""
    wrong = [f for f in failed.findings if f.verdict == "fail" and f.where is not None]
    if not wrong or wrong[0].pattern is None or not wrong[0].pattern.factor:
        return []
    return _differing(failed) if wrong[0].where and wrong[0].where.kind in _GRADIENTS else []


def _differing(failed: Comparison) -> list[str]:
    """The paths of the parameters whose gradients, before or after clipping, are wrong."""
    found = (f.where for f in failed.findings if f.verdict == "fail" and f.where is not None)
    return list(dict.fromkeys(id.path for id in found if id.kind in _GRADIENTS))


def whole_steps(failed: Comparison, places: Places) -> Located:
    """The report's row for a program that marked no micro-batch, and a line of its step.

    `places` has the lines.  No module is named, since none is compared.
    """
    wrong = [f.where for f in failed.findings if f.verdict == "fail" and f.where is not None]
    kinds = {id.kind for id in wrong}
    apart = unheld_in_both(places.candidate, places.reference)
    # What no optimizer holds, such as an average, may follow from a wrong trained parameter.
    held = [id for id in wrong if id.kind not in _STEPPED or parameter_of(id) not in apart]
    place = places.of_tensor((held or wrong)[0], failed) if wrong else NOWHERE
    if kinds and kinds <= _STEPPED and failed.compared["main_grad"]:
        names = list(dict.fromkeys(parameter_of(id) for id in held or wrong))
        if not held:
            text = UnheldLines(places.candidate, places.reference, failed, names).sentence()
            return _at(place, [("faulty", text)], [("unheld", name) for name in names])
        alone = places.trained(names)
        step = f"the optimizer's step of {name_list(names, 'parameter')} is wrong"
        text = (
            f"every {'other ' * alone.newly}gradient that the optimizer receives agrees; "
            f"{alone.sentence() or step}"
        )
        return _at(place, [("faulty", text)], [("optimizer", name) for name in names])
    if kinds == {"loss"} and failed.compared["main_grad"]:
        text = "every gradient and update agrees; the loss that the program reports is wrong"
        return _at(place, [("faulty", text)], [("loss", "<program>")])
    if any(f.pattern is not None and f.pattern.name == "same data" for f in failed.findings):
        return _at(place, [])  # the pattern says what is at fault
    agrees = bool(kinds) and "loss" not in kinds and bool(failed.compared["loss"])
    before = "the loss agrees; " if agrees else ""
    names = _differing(failed)
    if names and wrong[0].kind in _GRADIENTS and (how := places.rescaled(failed, names)):
        text = f"{before}the gradients of {name_list(names, 'parameter')} {how}"
        return _at(place, [("faulty", text)], [("reduction", name) for name in names])
    where = "in the data, the forward, the backward or the reduction of gradients"
    if kinds and wrong[0].kind == "loss":
        where = (
            "in what makes this loss: the data, the forward or the weights that compute it; or in "
            "how the loss is reported"
        )
    elif agrees:
        where = "in the backward or the reduction of gradients"
    why = (
        f"{before}only whole steps were compared, so the fault may be {where}; mark micro-batches "
        "with ctx.microbatch to distinguish these"
    )
    rows = [("not localised", why)]
    if wrong and wrong[0].kind == "loss" and not any(s.what == "model" for s in places.sites):
        unseen = "no call of the watched model was seen, so other weights may compute the loss"
        rows.append(("", unseen))
    return _at(place, rows)
