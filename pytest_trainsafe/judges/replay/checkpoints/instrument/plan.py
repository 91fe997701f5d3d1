"""Determines what a checkpoint must contain, by DETrain's dependence analysis, as a plan.

A variable is the memory of a tensor, or a random number generator. Its number is its index in
`Recording.variables`. A variable is needed at the checkpoint if a later operation reads it before
another one replaces it, and if the result reaches a parameter or Python code. It is needed too if a
later operation updates it in place from its old value. A needed variable that is not in the
checkpoint must be saved, drawn again from the states of its generators, or computed again when the
program starts; the operations that computed it determine which.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from pytest_trainsafe.core.usage import excerpt, shown
from pytest_trainsafe.errors import ArgumentError, ArgumentTypeError
from pytest_trainsafe.judges.replay.checkpoints.instrument.operations import (
    Operation,
    OperationRecorder,
    Recording,
    SavedAt,
    Variable,
)

#: Why repeating the last draw does not restore a tensor.
_EARLIER = "its value depends on earlier steps too"
_DRAWN_AGAIN = "this line has drawn again since"

Action = Literal["save", "regenerate", "recompute"]


@dataclass(frozen=True, slots=True)
class PlanRow:
    """How a restarted program obtains one variable (a tensor or a generator) that it needs.

    `action` says how: the checkpoint saves it ("save"), a function draws it again ("regenerate"),
    or the program's start computes it again ("recompute"). `what` describes the variable. `missing`
    is true if the program does not take this action yet. `reason` explains the choice of the action
    and, if the action is missing, what to change in the program.
    """

    action: Action
    what: str
    bytes: int
    reason: str
    missing: bool = False


@dataclass(frozen=True, slots=True)
class ReplayPlan:
    """The tensors and generators that a restart from a checkpoint of `program` needs, as rows.

    `step` is the number of the step before which the checkpoint was saved. `str(plan)` shows the
    rows as a table.
    """

    program: str
    step: int
    rows: tuple[PlanRow, ...]

    @property
    def missing(self) -> tuple[PlanRow, ...]:
        """The rows on tensors and generators that a restart needs and does not get yet."""
        return tuple(row for row in self.rows if row.missing)

    def __str__(self) -> str:
        head = f"replay plan of {self.program!r} for the checkpoint before step {self.step}"
        rows = [
            ("MISSING" if row.missing else "", row.action, row.what, f"{row.bytes}", row.reason)
            for row in (*self.missing, *(row for row in self.rows if not row.missing))
        ]
        table = [("", "action", "what", "bytes", "reason"), *rows]
        widths = [max(len(row[column]) for row in table) for column in range(4)]
        lines = [
            "  ".join((*(c.ljust(w) for c, w in zip(row, widths, strict=False)), row[4])).rstrip()
            for row in table
        ]
        count = len(self.missing)
        end = (
            "complete for tensors and generators; state in Python objects and NumPy arrays is not "
            "traced"
            if not count
            else f"{count} missing: a restarted training would differ from the original"
        )
        return "\n".join([head, "", *(f"  {line}" for line in lines), "", end])


def replay_plan(train: Callable[[], object]) -> ReplayPlan:
    """Determines what a restart of a program needs, and whether its ReplayCheckpoint provides it.

    `train` runs a few steps of the program on little data. It saves one ReplayCheckpoint after
    at least one optimizer step, better two, and takes at least one more step afterwards; what only
    the first step makes counts as made when the program starts. Tensors in nested
    dicts and lists that `torch.save` writes count as part of the program's own checkpoint if
    they do not change between that call and the ReplayCheckpoint. Raises ArgumentError if there
    is no such ReplayCheckpoint.
    """
    if not callable(train):
        raise ArgumentTypeError(
            f"replay_plan was given {shown(train)}; pass a function that trains a few steps"
        )
    with OperationRecorder().recording() as recording:
        train()
    return plan_of(recording)


def plan_of(recording: Recording) -> ReplayPlan:
    """The plan for the last checkpoint that is followed by a step."""
    fitting = [c for c in recording.checkpoints if 0 < c.steps < len(recording.steps)]
    if not fitting:
        raise ArgumentError(
            f"replay_plan was given a program that saved {len(recording.checkpoints)} "
            "ReplayCheckpoints, none of them between two optimizer steps; save one after some "
            "steps, and then take at least one more step"
        )
    checkpoint = fitting[-1]
    return ReplayPlan(checkpoint.program, checkpoint.step, tuple(_rows(recording, checkpoint)))


def _rows(recording: Recording, checkpoint: SavedAt) -> list[PlanRow]:
    before = recording.operations[: checkpoint.operations]
    needed = _needed(recording, checkpoint)
    own = _in_files(recording, checkpoint)
    started = recording.steps[0]
    rows: list[PlanRow] = []
    saved_bytes = 0
    saved_names: list[str] = []
    for number in sorted(needed):
        variable = recording.variables[number]
        if variable.generator:
            rows.append(_generator_row(variable, number in checkpoint.generators))
        elif number in own:
            saved_bytes, saved_names = saved_bytes + variable.bytes, [*saved_names, own[number]]
        elif number in checkpoint.states:
            what = checkpoint.states[number]
            rows.append(PlanRow("save", what, variable.bytes, "given in states="))
        else:
            rows.append(_tensor_row(recording, checkpoint, number, before, started))
    for name in checkpoint.untraced:
        reason = "given in generators=; its draws are not traced"
        rows.append(PlanRow("save", f"generator {name!r}", checkpoint.sizes[name], reason))
    for line in recording.unsaved:
        variable = Variable(0, f"numpy.random.Generator of {_short(line)}")
        rows.append(_generator_row(variable, saved=False))
    if saved_names:
        more = f" and {len(saved_names) - 1} more" if len(saved_names) > 1 else ""
        reason = "in the program's own checkpoint (torch.save)"
        rows.insert(0, PlanRow("save", f"{saved_names[0]}{more}", saved_bytes, reason))
    return [*_merged(_alike(rows)), *_held_by_python(recording, checkpoint)]


def _needed(recording: Recording, checkpoint: SavedAt) -> set[int]:
    """The variables whose values at the checkpoint reach a parameter or Python code after it.

    They are given as indices in `recording.variables`.
    """
    needed = {n for n, variable in enumerate(recording.variables) if variable.parameter}
    for operation in reversed(recording.operations[checkpoint.operations :]):
        made = operation.replaces | operation.changes
        if not (operation.shows or made & needed):
            continue
        needed -= operation.replaces
        needed |= operation.reads | operation.changes
    return needed | _continued(recording, checkpoint)


def _continued(recording: Recording, checkpoint: SavedAt) -> set[int]:
    """The tensors that existed at the checkpoint and are computed on from their old values.

    Running means and averages of weights are an example: they are needed even if nothing reads
    them before the program ends, as they are part of what it trains.
    """
    existed = {
        number
        for operation in recording.operations[: checkpoint.operations]
        for number in operation.replaces | operation.changes | operation.reads
    }
    found: set[int] = set()
    replaced: set[int] = set()
    for operation in recording.operations[checkpoint.operations :]:
        found |= (operation.continues & existed) - replaced
        replaced |= operation.replaces
    return found


def _in_files(recording: Recording, checkpoint: SavedAt) -> Mapping[int, str]:
    """The tensors that torch.save wrote with the values that they have at the checkpoint.

    Maps the index of each in `recording.variables` to its name in the file.
    """
    found: dict[int, str] = {}
    for number, names in recording.files:
        first, last = sorted((number, checkpoint.operations))
        changed = {
            variable
            for operation in recording.operations[first:last]
            for variable in operation.replaces | operation.changes
        }
        found |= {variable: name for variable, name in names.items() if variable not in changed}
    return found


def _generator_row(variable: Variable, saved: bool) -> PlanRow:
    if saved:
        reason = "drawn from after the checkpoint"
        return PlanRow("save", variable.text, variable.bytes, reason)
    reason = "drawn from after the checkpoint; pass it in ReplayCheckpoint(generators=...)"
    return PlanRow("save", variable.text, variable.bytes, reason, missing=True)


def _tensor_row(
    recording: Recording,
    checkpoint: SavedAt,
    number: int,
    before: list[Operation],
    started: int,
) -> PlanRow:
    """The row on a needed tensor that neither `torch.save` nor the ReplayCheckpoint saves.

    The operations that computed the tensor determine how a restart obtains it.  `number` is the
    tensor's index in `recording.variables`, `before` are the operations before the checkpoint, and
    the first `started` of them belong to the program's start and its first step.
    """
    variable = recording.variables[number]
    slice_, trained = _definition(recording, number, before)
    last = max(slice_, default=-1)
    line = _short(before[last].line) if slice_ else ""
    what = f"{variable.text} of {line}" if line else variable.text
    late = [index for index in slice_ if index >= started]
    drawn = sorted(
        {
            recording.variables[changed].generator
            for index in slice_
            for changed in before[index].changes
            if recording.variables[changed].generator
        }
    )
    if not slice_:
        reason = "created by NumPy or Python, which are not traced: create it in the same way"
        return PlanRow("recompute", what, variable.bytes, reason)
    if not late:
        seeds = f", with {' and '.join(drawn)} seeded as before" if drawn else ""
        reason = f"made before the first step{seeds}, and unchanged since"
        return PlanRow("recompute", what, variable.bytes, reason)
    names = {before[index].regenerating for index in late}
    if "" not in names:
        name = ", ".join(sorted(names))
        size = sum(checkpoint.sizes.get(each, 0) for each in names)
        reason = f"fast_forward of {name!r} draws the {variable.bytes} bytes again"
        return PlanRow("regenerate", what, size, reason)
    save = "save it with the model, or pass its owner in states="
    draws = [index for index in late if _draws(recording, before[index])]
    if not draws or trained:
        changed = next(before[index] for index in late if not before[index].regenerating)
        cause = "training changes it" if trained else "it changes"
        reason = f"{cause} at {_short(changed.line)}; {save}"
        return PlanRow("save", what, variable.bytes, reason, missing=True)
    line = _short(before[draws[0]].line)
    sources = " and ".join(sorted({_draws(recording, before[index]) for index in draws}))
    why = _why_not_last(recording, before, slice_, late)
    in_place = why == _EARLIER and _is_all_drawn(number, before, slice_, late)
    if why and not in_place:
        reason = f"drawn at {line}, but {why}, so repeating the last draw is not enough; {save}"
        return PlanRow("save", what, variable.bytes, reason, missing=True)
    keep = " with keep='all'" if in_place else ""
    reason = (
        f"drawn at {line} from {sources}; pass the function that draws it to "
        f"ReplayCheckpoint.regenerates{keep}, and to fast_forward after load"
    )
    return PlanRow("regenerate", what, variable.bytes, reason, missing=True)


def _why_not_last(
    recording: Recording, before: list[Operation], slice_: list[int], late: list[int]
) -> str:
    """Why repeating the last draw does not restore a drawn tensor; "" if it may do so.

    `slice_` are the operations that computed the tensor, and `late` those of them that come after
    the first step, both as indices in `before`, the last one first.
    """
    lines = {before[index].line for index in late}
    steps = {
        bisect_right(recording.steps, index) for index in slice_ if before[index].line in lines
    }
    if len(steps) > 1:
        return _EARLIER
    drawing = {before[index].line for index in late if _draws(recording, before[index])}
    since = before[late[0] + 1 :]
    if any(each.line in drawing and _draws(recording, each) for each in since):
        return _DRAWN_AGAIN
    return ""


def _is_all_drawn(number: int, before: list[Operation], slice_: list[int], late: list[int]) -> bool:
    """Whether the steps compute a tensor from nothing but draws and its own old value.

    Then repeating all calls of the function that draws restores it, such as a shuffle in place.
    `number` is the tensor's index in `Recording.variables`; the other arguments are those of
    `_why_not_last`.
    """
    lines = {before[index].line for index in late}
    repeated = [before[index] for index in slice_ if before[index].line in lines]
    made = {number}.union(*(each.replaces for each in repeated))
    return all(each.reads <= made for each in repeated)


def _definition(
    recording: Recording, number: int, before: list[Operation]
) -> tuple[list[int], bool]:
    """The operations that computed a tensor, and whether any of them reads parameters.

    `number` is the tensor's index in `recording.variables`.  The operations are given as indices in
    `before`, the last one first.
    """
    wanted, found, trained = {number}, [], False
    for index in range(len(before) - 1, -1, -1):
        operation = before[index]
        if not (operation.replaces | operation.changes) & wanted:
            continue
        found.append(index)
        wanted -= operation.replaces
        inputs = operation.reads | operation.changes
        trained |= any(recording.variables[each].parameter for each in inputs)
        wanted |= {each for each in inputs if not recording.variables[each].generator}
    return found, trained


def _held_by_python(recording: Recording, checkpoint: SavedAt) -> list[PlanRow]:
    """Rows on random numbers that only Python code holds, so that their later use is not traced.

    There is one row for each line that draws such numbers between the first step and the
    checkpoint.  A line that also draws in the first step after the checkpoint has no row.
    """
    operations = recording.operations
    end = recording.steps[checkpoint.steps]
    again = {o.line for o in operations[checkpoint.operations : end] if _draws(recording, o)}
    read = {number for operation in operations for number in operation.reads}
    shown_: set[int] = {n for o in operations if o.shows for n in o.reads}
    rows = {}
    for index in range(recording.steps[0], checkpoint.operations):
        operation = operations[index]
        drawn = _draws(recording, operation)
        if not drawn or operation.regenerating or operation.line in again:
            continue
        results = {n for n in operation.replaces if not recording.variables[n].generator}
        if not operation.shows and results & read - shown_:
            continue  # the result is a tensor, whose use is traced
        line = _short(operation.line)
        rows[operation.line] = PlanRow(
            "regenerate",
            f"{operation.name} of {line}",
            0,
            f"drawn from {drawn} and held by Python, which is not traced; if a later step uses it, "
            "pass the function that draws it to ReplayCheckpoint.regenerates",
            missing=True,
        )
    return list(rows.values())


def _draws(recording: Recording, operation: Operation) -> str:
    """The name of the generator that an operation draws from; "" if it draws from none."""
    names = (recording.variables[number].generator for number in operation.changes)
    return next(filter(None, names), "")


def _alike(rows: list[PlanRow]) -> list[PlanRow]:
    """The rows, in which the tensors of one line are all saved if one of them has to be.

    A program may keep the results of the last few draws of a line; it saves them together.
    """
    saved = {row.what: row for row in rows if row.missing and row.action == "save"}
    return [
        replace(saved[row.what], bytes=row.bytes)
        if row.missing and row.action == "regenerate" and row.what in saved
        else row
        for row in rows
    ]


def _merged(rows: list[PlanRow]) -> list[PlanRow]:
    """The rows, in which rows that differ only in their bytes are merged and the bytes added."""
    merged: dict[tuple[object, ...], PlanRow] = {}
    for row in rows:
        key = row.action, row.what, row.reason, row.missing
        size = row.bytes + (merged[key].bytes if key in merged else 0)
        merged[key] = PlanRow(row.action, row.what, size, row.reason, row.missing)
    return list(merged.values())


def _short(line: str) -> str:
    return excerpt(os.path.basename(line)) if line else "an unknown line"
