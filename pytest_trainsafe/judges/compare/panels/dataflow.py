"""Where an error starts and how it grows: module by module, layer by layer, kind by kind."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from pytest_trainsafe.core.rungs.table import rung_named
from pytest_trainsafe.core.tensor_id import INITIAL, MEANINGS, Kind
from pytest_trainsafe.judges.compare.panels.tensors import Compared, One, step_text
from pytest_trainsafe.report.panels import Graph, HeatMap, Line, Node, Panel, Series, State, number
from pytest_trainsafe.report.sections import label

#: The most modules that the dataflow shows, and the most places of a curve.
MOST_MODULES, MOST_PLACES = 240, 400

#: The lanes of the dataflow: their kinds, and whether data flows from the last module to the first.
_LANES: tuple[tuple[str, tuple[Kind, ...], bool], ...] = (
    ("forward", ("input", "activation", "decision", "loss"), False),
    ("backward (activation_grad)", ("activation_grad",), True),
    ("micro-batch gradient (param_grad)", ("param_grad",), True),
    (
        "reduced gradient (unclipped_grad, main_grad)",
        ("unclipped_grad", "main_grad", "grad_norm"),
        False,
    ),
    ("optimizer", ("update", "optimizer_state", "master_param"), False),
    ("state", ("param", "buffer"), False),
)

_SEVERITY: tuple[State, ...] = ("first", "wrong", "doubt", "", "pale")


def dataflow(compared: Compared) -> Graph | None:
    """The modules in the order of the forward, with the largest error of each in each phase.

    Shows the step of the first wrong tensor, else the first step.
    """
    step = compared.lead.step if compared.lead is not None else 0
    here = [one for one in compared.tensors if one.id.step == step] or [*compared.tensors]
    if not here:
        return None
    depth = _depth(here)
    order = _modules(here, depth)
    row = {module: number for number, module in enumerate(order)}
    lanes = [lane for lane in _LANES if any(one.id.kind in lane[1] for one in here)]
    cells: dict[tuple[int, int], list[One]] = {}
    for one in here:
        lane = next((n for n, each in enumerate(lanes) if one.id.kind in each[1]), None)
        at = row.get(_module(one, depth))
        if lane is not None and at is not None:
            cells.setdefault((lane, at), []).append(one)
    nodes = []
    for (lane, at), ones in sorted(cells.items()):
        lead = min(ones, key=lambda one: (_SEVERITY.index(one.state), -(one.ratio or 0.0)))
        more = f"{len(ones)} tensors" if len(ones) > 1 else ""
        nodes.append(Node(lane, at, lead.state, lead.shown, more, lead.anchor))
    left = len(_modules(here, depth, most=10**6)) - len(order)
    count = len({one.id.microbatch for one in here} - {None})
    batches = f", {count} micro-batch{'es' * (count > 1)}" if count else ""
    when = step_text(step) if step == INITIAL else f"step {step}"
    note = f"{when}{batches}, in {compared.rung.dtype}: the largest error of each module and phase"
    if left > 0:
        note += f"; {left} more modules are left out"
    if any(one.ratio == math.inf and not one.missing for one in here):
        note += "; ∞: no error is allowed there, or ranks that must agree differ"
    if around := _around_first(compared, here):
        note += f". {around}"
    return Graph(
        title="Dataflow",
        lanes=tuple(name for name, _, _ in lanes),
        rows=tuple(label(name or "the whole model") for name in order),
        nodes=tuple(nodes),
        up=tuple(n for n, (_, _, up) in enumerate(lanes) if up),
        note=note,
    )


def _around_first(compared: Compared, here: Sequence[One]) -> str:
    """A sentence on the first wrong output of a module: what before and inside it agrees."""
    lead = compared.lead
    if lead is None or lead.kind != "activation":
        return ""
    name = label(lead.path)
    ones = [one for one in here if one.id.kind in ("input", "activation", "decision")]
    at = next((n for n, one in enumerate(ones) if one.id == lead), 0)
    prefix = f"{lead.module}." if lead.module else ""
    batch = [one for one in ones[:at] if one.id.microbatch == lead.microbatch]
    inside = [one for one in batch if one.id.kind != "input" and one.id.module.startswith(prefix)]
    if not batch or any(one.state in ("wrong", "doubt") for one in batch):
        return ""
    text = f"First wrong: {name}. Everything before it agrees ({len(batch)} inputs and outputs)"
    if inside:
        modules = {one.id.module for one in inside}
        text += f", also what the modules inside it give ({len(modules)}); its own output is wrong"
    return text


def _depth(ones: Iterable[One]) -> int:
    """How many parts of modules' names to tell apart, so that not too many modules are shown."""
    modules = {one.id.module for one in ones}
    deepest = max((name.count(".") + 1 for name in modules), default=1)
    for depth in range(deepest, 1, -1):
        if len({_cut(name, depth) for name in modules}) <= MOST_MODULES:
            return depth
    return 1


def _cut(name: str, depth: int) -> str:
    return ".".join(name.split(".")[:depth])


def _module(one: One, depth: int) -> str:
    if one.id.kind in ("input", "loss", "grad_norm"):
        return one.id.kind
    return _cut(one.id.module, depth)


def _modules(ones: Sequence[One], depth: int, most: int = MOST_MODULES) -> list[str]:
    """The modules in the order of the forward; those without outputs come where they are met."""
    forward = [one for one in ones if one.id.kind in ("input", "activation", "decision")]
    order = list(dict.fromkeys(_module(one, depth) for one in forward))
    for name in dict.fromkeys(_module(one, depth) for one in ones):
        if name in order:
            continue
        parent = name.rpartition(".")[0]
        # Before its parent, whose output comes after those of the modules in it.
        at = order.index(parent) if parent and parent in order else len(order)
        order.insert(at, name)
    return order[:most]


def kinds(compared: Compared) -> HeatMap | None:
    """The largest error of each layer in each kind of tensor, over all steps."""
    if not compared.tensors:
        return None
    rows = list(dict.fromkeys(_layer(one.id.module) for one in _forward_first(compared)))[:200]
    columns: list[Kind] = list(dict.fromkeys(one.id.kind for one in compared.tensors))
    worst: dict[tuple[str, str], One] = {}
    for one in compared.tensors:
        key = _layer(one.id.module), one.id.kind
        if key not in worst or _over(one) > _over(worst[key]):
            worst[key] = one
    first = None
    if compared.lead is not None:
        key = _layer(compared.lead.module), compared.lead.kind
        if key[0] in rows:
            first = rows.index(key[0]), columns.index(compared.lead.kind)
        leads = next((one for one in compared.tensors if one.id == compared.lead), None)
        if leads is not None:
            worst[key] = leads
    cells = [[worst.get((row, column)) for column in columns] for row in rows]
    return HeatMap(
        title="Layers and kinds of tensors",
        rows=tuple(label(row or "the whole model") for row in rows),
        columns=tuple(columns),
        values=tuple(tuple(None if one is None else one.shown for one in row) for row in cells),
        anchors=tuple(tuple("" if one is None else one.anchor for one in row) for row in cells),
        first=first,
        note=f"in {compared.rung.dtype}: the largest error of all steps and micro-batches. "
        + "; ".join(f"{kind}: {MEANINGS[kind]}" for kind in columns),
    )


def _forward_first(compared: Compared) -> list[One]:
    ones = compared.tensors
    return sorted(ones, key=lambda one: one.id.kind not in ("input", "activation"))


def _layer(module: str) -> str:
    """The layer that a module belongs to: its name up to the first number, else its first part."""
    parts = module.split(".")
    for at, part in enumerate(parts):
        if part.isdecimal():
            return ".".join(parts[: at + 1])
    return parts[0]


def _over(one: One) -> float:
    return -1.0 if one.ratio is None or math.isnan(one.ratio) else one.ratio


def curves(compared: Compared) -> list[Panel]:
    """Errors and what is allowed: over the forward, and over the kind of the first wrong tensor.

    None on exact numbers, whose errors have no size.  A forward without any error says nothing
    beside the kind that is wrong.
    """
    if rung_named(compared.rung.dtype).exact:
        return []
    asked: list[Kind] = ["activation"]
    if compared.lead is not None and compared.lead.kind not in ("loss", "input", "activation"):
        asked.append(compared.lead.kind)
    elif compared.lead is None:
        asked.append("main_grad")
    made = [panel for kind in asked if (panel := _curve(compared, kind)) is not None]
    if len(made) == 2 and compared.lead is not None and not any(made[0].lines[0].values):
        made = made[1:]
    return [*made]


def _curve(compared: Compared, kind: Kind) -> Series | None:
    lead = compared.lead
    step = lead.step if lead is not None else 0
    ones = [one for one in compared.tensors if one.id.kind == kind and one.id.step == step]
    batch = ones[0].id.microbatch if ones else None
    if lead is not None and any(one.id.microbatch == lead.microbatch for one in ones):
        batch = lead.microbatch
    ones = [one for one in ones if one.id.microbatch == batch and one.error is not None]
    ones = ones[:MOST_PLACES]
    if len(ones) < 2:
        return None
    beyond = [_beyond(one) for one in ones]
    lines = [
        Line("error", tuple(number(one.error) for one in ones)),
        Line("allowed", tuple(number(one.allowed) for one in ones)),
    ]
    if any(value is not None for value in beyond):
        lines.append(Line("error beyond what rounding explains", tuple(map(number, beyond))))
    when = str(step_text(step)) if step == INITIAL else f"step {step}"
    when += "" if batch is None else f", micro-batch {batch}"
    return Series(
        title=f"Errors of {kind}, in order",
        places=tuple(label(one.id.path) for one in ones),
        lines=tuple(lines),
        quantity="tensor",
        states=tuple(one.state for one in ones),
        anchors=tuple(one.anchor for one in ones),
        note=f"{when}, in {compared.rung.dtype}; errors are relative to the reference's norm",
    )


def _beyond(one: One) -> float | None:
    """The effect of the fault: what is left of an error if rounding did its most."""
    if one.error is None or one.allowed is None or not one.error > one.allowed:
        return None
    if math.isinf(one.error):
        return one.error
    return math.sqrt(one.error**2 - one.allowed**2)
