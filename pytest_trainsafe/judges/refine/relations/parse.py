"""Reads a relation from its text, as users write it and as certificates hold it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from pytest_trainsafe.core.untrusted import shown
from pytest_trainsafe.judges.refine.errors import InputRelationError
from pytest_trainsafe.judges.refine.relations.relation import Relation, Step

_NAME = re.compile(r"[\w.<>-]{1,200}")
_WHOLE = {"replica", "same", "the same", "the same on every rank"}
_STEP = re.compile(
    r"(?P<kind>concat|sum|all)(?: (?P<dim>-?\d{1,3}))?(?: over (?P<axis>\w+))?"
    r"(?P<zigzag> zigzag)?"
    r"(?: by (?P<by>\d{1,9}))?(?: order (?P<order>\d{1,6}(?: \d{1,6})*))?"
    r"(?: parts (?P<parts>\d{1,12}(?:x\d{1,6})?(?:\+\d{1,12}(?:x\d{1,6})?)*))?"
)
_AT = re.compile(r"at (\w+)=(\d{1,6})")
_SLICE = re.compile(r"slice (\d{1,3}) (\d{1,12}):(\d{1,12})")
_PERMUTE = re.compile(r"permute (\d{1,3}(?: \d{1,3})*)")
_FORM = (
    "'replica', 'concat 0', 'sum', 'concat 0 over tp', 'concat 0 by 8', 'concat 0 zigzag', "
    "'concat 0 parts 768+128+128', 'sum over dp, concat 1 over tp of w', 'concat 0 of x_1, x_2'"
)


def parse_relation(text: str, name: str, axes: Mapping[str, int]) -> Relation:
    """The relation that a text describes; the ranks' tensors are called `name` unless it says so.

    Raises InputRelationError with what may be written.
    """
    steps_text, of, names_text = (" " + text.strip()).partition(" of ")
    names = tuple(each.strip() for each in names_text.split(",")) if of else (name,)
    if not all(_NAME.fullmatch(each) for each in names):
        raise _wrong(text, name)
    steps_text = steps_text.strip()
    if steps_text in _WHOLE:
        return Relation((), names)
    steps = tuple(
        _step(part.strip(), text, name, axes, len(names) > 1) for part in steps_text.split(",")
    )
    joined = [step.axis for step in steps if step.axis]
    if len(set(joined)) < len(joined):
        raise InputRelationError(f"{shown(name)}: {shown(text)!r} joins one axis twice")
    if len(names) > 1 and sum(not step.axis and step.kind != "slice" for step in steps) != 1:
        raise InputRelationError(
            f"{shown(name)}: {shown(text)!r} names several tensors; one step without an axis has "
            "to join them: 'concat 0 of x_1, x_2'"
        )
    return Relation(steps, names)


def _wrong(text: str, name: str) -> InputRelationError:
    return InputRelationError(
        f"{shown(name)}: {shown(text)!r} is no relation; relations are written as {_FORM}"
    )


def _step(text: str, whole: str, name: str, axes: Mapping[str, int], several: bool) -> Step:
    if match := _AT.fullmatch(text):
        axis = _axis(match.group(1), name, axes)
        index = int(match.group(2))
        if index >= axes[axis]:
            raise InputRelationError(f"{shown(name)}: {axis} has {axes[axis]} ranks, no {index}")
        return Step("at", axis, numbers=(index,))
    if match := _SLICE.fullmatch(text):
        dim, start, stop = map(int, match.groups())
        return Step("slice", dim=dim, numbers=(start, stop))
    if match := _PERMUTE.fullmatch(text):
        return Step("permute", numbers=tuple(map(int, match.group(1).split())))
    match = _STEP.fullmatch(text)
    if match is None or (match["kind"] == "concat") != (match["dim"] is not None):
        raise _wrong(whole, name)
    zigzag = match["zigzag"] is not None
    if zigzag and (match["kind"] != "concat" or match["by"] or match["order"] or match["parts"]):
        raise _wrong(whole, name)
    axis = match["axis"]
    if axis is None:
        axis = "" if several else _only_axis(whole, name, axes)
    return Step(
        match["kind"],  # type: ignore[arg-type]
        _axis(axis, name, axes) if axis else "",
        int(match["dim"] or 0),
        2 if zigzag else int(match["by"] or 1),
        _order(match["order"], axes.get(axis), name),
        _parts(match["parts"]),
        zigzag=zigzag,
    )


def _axis(axis: str, name: str, axes: Mapping[str, int]) -> str:
    if axis not in axes:
        raise InputRelationError(
            f"{shown(name)}: there is no axis {shown(axis)}; the mesh has {', '.join(axes)}"
        )
    return axis


def _only_axis(text: str, name: str, axes: Mapping[str, int]) -> str:
    if len(axes) != 1:
        raise InputRelationError(
            f"{shown(name)}: {shown(text)!r} does not say over which axis; the mesh has "
            f"{', '.join(axes)}: write '... over {next(iter(axes), 'tp')}'"
        )
    return next(iter(axes))


def _order(text: str | None, size: int | None, name: str) -> tuple[int, ...]:
    if text is None:
        return ()
    order = tuple(map(int, text.split()))
    if size is not None and sorted(order) != list(range(size)):
        raise InputRelationError(f"{shown(name)}: the order {text} is not one of {size} ranks")
    return order


def _parts(text: str | None) -> tuple[tuple[int, int], ...]:
    if text is None:
        return ()
    split: Sequence[list[str]] = [part.split("x") for part in text.split("+")]
    return tuple((int(size), int(*copies) if copies else 1) for size, *copies in split)
