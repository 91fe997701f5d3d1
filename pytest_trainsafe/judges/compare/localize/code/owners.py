"""Clauses on what belongs to a module or parameter at fault: its class, functions, calls, copies.

They stand beside the line at fault.  Called by `judges.compare.localize.description` and
`judges.compare.localize.code.places`.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

from pytest_trainsafe.core.tensor_id import TensorId
from pytest_trainsafe.judges.compare.comparison import Comparison
from pytest_trainsafe.judges.compare.explain.groups import over
from pytest_trainsafe.judges.compare.explain.module_code import module_code
from pytest_trainsafe.judges.compare.fault.clause import Clause, Kind, at, listed
from pytest_trainsafe.judges.compare.localize.blame import PROGRAM, Fault
from pytest_trainsafe.judges.compare.localize.code.lines import (
    NOWHERE,
    Place,
    follows,
    is_apart,
    own,
)
from pytest_trainsafe.judges.compare.localize.gradients import (
    adds_up,
    given_at,
    not_of_others,
    sizes_of,
    unsummed,
)
from pytest_trainsafe.judges.compare.localize.inputs import Compared
from pytest_trainsafe.trace.facts import MAX_SIZES, Applied, CollectiveEvent, Reduction, SetUp
from pytest_trainsafe.trace.reader import Trace
from pytest_trainsafe.trace.schema import ModuleEvent, TensorEvent

#: At most so many functions, and so many calls, are named.
_MOST = 2


def taking_part(
    candidate: Trace,
    modules: Mapping[str, ModuleEvent],
    group: Sequence[Fault],
    faults: Sequence[Fault],
    source: str,
    compared: Compared,
    first: TensorId | None,
) -> list[Clause]:
    """Clauses on code that takes part in a `group` of all `faults`, whose line is `source`.

    The class of parameters is named if only some of those that were `compared` are wrong.  `first`
    is the first wrong tensor.
    """
    fault = group[0]
    if fault.target == PROGRAM or fault.condition or fault.uncalled:
        return []
    match fault.phase:
        case "weights" | "reduction":
            some = len(group) < compared.parameters
            return common_class(modules, [each.target for each in group], source) if some else []
        case "clearing":
            return reduced_at(candidate, source)
        case "backward":
            wrong = {each.target for each in faults if each.phase == "weights"}
            its = [path for path in compared.trained if path.rpartition(".")[0] == fault.target]
            right = bool(its) and wrong.isdisjoint(its)
            read = first.module if first is not None and first.kind == "activation_grad" else ""
            return functions(candidate, fault.target, True, source, by_input=right, read=read)
        case "forward":
            runs = functions(candidate, fault.target, False, source)
            return [*runs, *communication(candidate, fault.target, source)]
    return []


def reduced_at(candidate: Trace, source: str) -> list[Clause]:
    """The clause on the first line that reduces gradients: they may be kept there beside `grad`."""
    for rank in candidate.ranks:
        for made in rank.events_of(Reduction):
            line = made.caller if own(made.caller) else made.site
            if made.of == "gradients" and line != source and own(line):
                return [at("gradients are reduced", line)]
    return []


def other_class(
    modules: Mapping[str, ModuleEvent], group: Sequence[Fault], source: str
) -> list[Clause]:
    """The clause on a class that is not at `source` and has parameters of the group."""
    for fault in group:
        cls, line = module_code(modules, fault.target.rpartition(".")[0])
        if line and line != source:
            return [at(f"another class with wrong parameters is {cls}", line)]
    return []


def functions(
    candidate: Trace,
    module: str,
    backward: bool,
    source: str,
    *,
    by_input: bool = False,
    read: str = "",
) -> list[Clause]:
    """The clause on the program's autograd functions that a module at `source` applies.

    If `backward`, it has the line of each function's backward.  Else it has that of the forward,
    without functions in the file of the module: the module's own code shows their calls.
    The last one applied comes first, or, `by_input`, the first one: if the gradients of a module's
    parameters are right and that of its input is not, what runs between these is at fault.  Before
    all others come those that are applied to what the module `read` returns.
    """
    what = "backward" if backward else "forward"
    found: dict[tuple[str, str], bool] = {}
    for rank in candidate.ranks:
        for each in rank.events_of(Applied):
            line = each.backward if backward else each.forward
            near = backward and own(line) and line != source
            if each.module == module and (near or (each.name and is_apart(line, source))):
                found[f"{each.name}.{what}", line] = read not in each.read
    kind: Kind = "backward" if backward else ""
    ordered = sorted(reversed(found) if by_input else found, key=found.__getitem__)
    return [listed(f"its {what} runs", ordered[:_MOST], kind=kind)] if found else []


def communication(candidate: Trace, module: str, source: str) -> list[Clause]:
    """The clause on the collectives that the forward of a module at `source` calls elsewhere.

    They are those of its first recorded call, after the last module that it calls has returned.
    """
    for rank in candidate.ranks:
        calls: dict[tuple[str, str, str], None] = {}
        for event in rank.events:
            if isinstance(event, CollectiveEvent) and not event.backward:
                line = event.user or event.site
                axes = over(candidate.point, event.ranks)  # none for a group of one rank
                if event.step is not None and axes and own(line) and line != source:
                    led = event.caller if is_apart(event.caller, source) else ""
                    calls[f"{event} over {axes}", line, led] = None
            elif isinstance(event, TensorEvent) and event.id.kind == "activation":
                if event.id.module == module:
                    if calls:
                        return [_called([*calls][:_MOST])]
                    break  # what comes before its next call is of another step
                calls.clear()
    return []


def _called(calls: Sequence[tuple[str, str, str]]) -> Clause:
    """The clause on calls of a forward: what is called, the line, and what led there, or ""."""
    does = "its forward calls"
    named = (str(at(call, line).called_at(led)) for call, line, led in calls)
    each = (at(f"{does} {call}", line).called_at(led) for call, line, led in calls)
    lines = tuple(line for clause in each for line in clause.lines)
    return Clause(f"{does} {' and '.join(named)}", lines)


def common_class(
    modules: Mapping[str, ModuleEvent], targets: Collection[str], source: str
) -> list[Clause]:
    """The clause on the class of the modules that have the parameters `targets`, if all are of one.

    None if the class is at `source`, or not the program's.
    """
    found = {module_code(modules, path.rpartition(".")[0]) for path in targets}
    if len(found) != 1:
        return []
    ((cls, line),) = found
    its = "its module" if len(targets) == 1 else "their modules"
    clause = at(f"the class of {its}, {cls}", line, by=", is at ")
    return [clause] if is_apart(line, source) else []


def set_up_after(candidate: Trace, targets: Collection[str], line: str) -> list[Clause]:
    """The clause on the one line below `line` that puts the modules of `targets` into the model.

    `targets` are paths of parameters; none if their modules are put there at another place.
    """
    modules = {path.rpartition(".")[0] for path in targets}
    placed = {each.module: each.at for rank in candidate.ranks for each in rank.events_of(SetUp)}
    lines = {placed.get(module, "") for module in modules}
    if len(lines) != 1:
        return []
    (after,) = lines
    if not after or not follows(after, line):
        return []
    names = f"{' and '.join(sorted(modules))} {'is' if len(modules) == 1 else 'are'}"
    return [at(f"{names} set up after that", after, by=", at ", kind="set up")]


def copies(candidate: Trace, targets: Sequence[str], over: str = "") -> Place:
    """The line that sets up the copy of a parameter on a later pipeline stage.

    NOWHERE unless each of `targets` is held by several stages, as tied embeddings are, and such a
    line is known; and if the axis `over` is given and is not that of the stages.
    """
    pipeline = [name for name in candidate.sizes if candidate.sizes.mesh.role(name) == "pp"]
    if len(pipeline) != 1 or not targets:
        return NOWHERE
    (axis,) = pipeline
    if over not in ("", axis):
        return NOWHERE
    stages: dict[str, dict[int, str]] = {path: {} for path in targets}
    for rank in candidate.ranks:
        stage = candidate.point.coordinates(rank.rank)[axis]
        placed = {each.module: each.inside or each.at for each in rank.events_of(SetUp)}
        held = {id.path for id in rank.tensors if id.kind == "param"}
        for path in held & stages.keys():
            stages[path].setdefault(stage, placed.get(path.rpartition(".")[0], ""))
    if any(len(lines) < 2 for lines in stages.values()):
        return NOWHERE
    path, lines = next(iter(stages.items()))
    first, last = min(lines), max(lines)
    if not own(lines[last]):
        return NOWHERE
    clauses = [Clause(f"sets up the copy of {path.rpartition('.')[0]} on the stage {axis}={last}")]
    if own(lines[first]):
        clauses.append(at(f"the stage {axis}={first} sets up its copy", lines[first]))
    unreduced = f"no call that reduces the gradient of the copies over {axis} was seen"
    return Place(lines[last], (*clauses, Clause(unreduced)))


def _of_size(candidate: Trace, size: int) -> str:
    """The path of a parameter of which some rank holds `size` elements."""
    params = (p for rank in candidate.ranks for p in rank.tensors.items() if p[0].kind == "param")
    return next(id.path for id, event in params if math.prod(event.shape) == size)


def summed_for_others(
    candidate: Trace, comparison: Comparison, reductions: Sequence[Reduction], targets: list[str]
) -> list[Clause]:
    """The clause on a sum that runs for other parameters and not for `targets`, which need it.

    Other parameters are known by the names of the tensors that the calls were given, or by their
    numbers of elements.  None if no call runs, or if one may be of `targets`, which are paths.
    """
    axis = unsummed(comparison, targets, {"param_grad"}) or unsummed(comparison, targets)
    over = [made for made in reductions if axis in made.axes and adds_up(made)]
    if not over:
        return []
    possible = not_of_others(candidate, over, targets)
    own_sizes, others = sizes_of(candidate, targets)
    sizes = {made.numel for made in possible}
    if sizes & own_sizes or sizes - others or len(sizes) >= MAX_SIZES:
        return []  # of these parameters, or of a bucket
    if possible:
        least, *more = sorted(size for size in sizes if size is not None)
        said = f"gradients such as that of {_of_size(candidate, least)} ({least} elements"
        said += f", and of {len(more)} other size{'s' if len(more) > 1 else ''})" if more else ")"
    else:
        given = given_at(candidate)
        count = len(set().union(*(given[made.site] for made in over)))
        said = f"the gradients of {count} other parameter{'s' if count > 1 else ''}"
    line = over[0].caller if own(over[0].caller) else over[0].site
    these = f"that of {targets[0]}" if len(targets) == 1 else f"these {len(targets)} parameters"
    if possible and len(own_sizes) == 1:
        these += f" ({min(own_sizes)} elements)"
    return [at(str(over[0]), line, more=f" runs for {said} and not for {these}")]
