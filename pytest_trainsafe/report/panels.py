"""Panels: what a wing shows of a judgement on the page of `--trainsafe-report`, as plain data.

A panel says what is drawn, not how: `report/html` draws every kind of panel and knows no judge.
Panels are made where the traces still exist, cross from pytest-xdist's workers as JSON, and are
read again from the files of other runs, so every collection in them is bounded.

An `anchor` is the name of a tensor or of another thing, by which links find it in all panels of a
test.  Numbers may be infinite or nan; JSON has neither, so `number` writes them as text.
"""

from __future__ import annotations

import math
from typing import Annotated, Literal

import msgspec

#: The most characters of a name or a label, and of a longer text.
LABEL, TEXT = 400, 60_000

#: The most rows of a table, nodes of a graph, events of a timeline, or points of a line.
MOST_ROWS = 2_000

#: The most characters of the encoded values of one map: 256 x 256 numbers of four bytes.
MOST_VALUES = 350_000

#: What is known about one row, cell or event: "first" is the first thing that is wrong, "doubt" is
#: inconclusive, and "pale" is not affected.
State = Literal["", "first", "wrong", "doubt", "right", "pale"]

Label = Annotated[str, msgspec.Meta(max_length=LABEL)]
Text = Annotated[str, msgspec.Meta(max_length=TEXT)]
Cell = Label | int | float | bool | None
_Index = Annotated[int, msgspec.Meta(ge=0, le=10**6)]
_Labels = Annotated[tuple[Label, ...], msgspec.Meta(max_length=MOST_ROWS)]
_States = Annotated[tuple[State, ...], msgspec.Meta(max_length=MOST_ROWS)]
_Number = float | Label | None
_Lines = Annotated[tuple[_Index, ...], msgspec.Meta(max_length=60)]


class Table(msgspec.Struct, frozen=True, kw_only=True, tag="table", omit_defaults=True):
    """Rows of cells below `columns`; `states` and `anchors` have an entry for each row, or none.

    A table without columns lists facts: the first cell of a row names the others.
    """

    title: Label
    columns: _Labels = ()
    rows: Annotated[
        tuple[Annotated[tuple[Cell, ...], msgspec.Meta(max_length=40)], ...],
        msgspec.Meta(max_length=MOST_ROWS),
    ]
    states: _States = ()
    anchors: _Labels = ()
    note: Text = ""


class Line(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line of a Series; a value of None is a gap."""

    name: Label
    values: Annotated[tuple[_Number, ...], msgspec.Meta(max_length=MOST_ROWS)]


class Series(msgspec.Struct, frozen=True, kw_only=True, tag="series", omit_defaults=True):
    """Lines over the same places, such as errors over the layers of a model, on a log scale."""

    title: Label
    places: _Labels
    lines: Annotated[tuple[Line, ...], msgspec.Meta(max_length=8)]
    quantity: Label = ""
    states: _States = ()
    anchors: _Labels = ()
    note: Text = ""


class HeatMap(msgspec.Struct, frozen=True, kw_only=True, tag="heat", omit_defaults=True):
    """A number for each row and column: an error as a multiple of what is allowed; None for none.

    `anchors[row][column]` names what has the number.
    """

    title: Label
    rows: _Labels
    columns: Annotated[tuple[Label, ...], msgspec.Meta(max_length=60)]
    values: Annotated[
        tuple[Annotated[tuple[_Number, ...], msgspec.Meta(max_length=60)], ...],
        msgspec.Meta(max_length=MOST_ROWS),
    ]
    anchors: Annotated[
        tuple[Annotated[tuple[Label, ...], msgspec.Meta(max_length=60)], ...],
        msgspec.Meta(max_length=MOST_ROWS),
    ] = ()
    first: tuple[_Index, _Index] | None = None
    note: Text = ""


class Node(msgspec.Struct, frozen=True, array_like=True):
    """A node of a Graph: its lane and row, by index, and an error as a multiple of the allowed."""

    lane: _Index
    row: _Index
    state: State = ""
    value: _Number = None
    detail: Label = ""
    anchor: Label = ""


class Graph(msgspec.Struct, frozen=True, kw_only=True, tag="graph", omit_defaults=True):
    """Nodes in lanes (columns) and rows; data flows along `edges`, pairs of indices of nodes.

    `up` has the lanes in which data flows from the last row to the first.
    """

    title: Label
    lanes: Annotated[tuple[Label, ...], msgspec.Meta(max_length=20)]
    rows: _Labels
    nodes: Annotated[tuple[Node, ...], msgspec.Meta(max_length=4 * MOST_ROWS)]
    up: Annotated[tuple[_Index, ...], msgspec.Meta(max_length=20)] = ()
    note: Text = ""


class Border(msgspec.Struct, frozen=True, array_like=True):
    """A rectangle of a map and what holds it: rows `top .. bottom`, columns `left .. right`."""

    top: float
    left: float
    bottom: float
    right: float
    label: Label


class Map(msgspec.Struct, frozen=True, omit_defaults=True):
    """The values of a matrix: float32 numbers in row-major order, little endian, as base64.

    `scale` is the greatest absolute value of the colours, 0 for that of the map itself.
    """

    name: Label
    shape: tuple[_Index, _Index]
    values: Annotated[str, msgspec.Meta(max_length=MOST_VALUES)]
    borders: Annotated[tuple[Border, ...], msgspec.Meta(max_length=256)] = ()
    scale: float = 0.0


class Maps(msgspec.Struct, frozen=True, kw_only=True, tag="maps", omit_defaults=True):
    """Maps of one tensor, side by side, such as candidate, reference and difference.

    `of` is the shape of the tensor, () if it is not known.  If it has more elements than each map
    has cells, `places` has the flat index of each cell's element: 32-bit integers, little endian,
    as base64.
    """

    title: Label
    maps: Annotated[tuple[Map, ...], msgspec.Meta(max_length=24)]
    anchor: Label = ""
    note: Text = ""
    of: Annotated[tuple[Annotated[int, msgspec.Meta(ge=0)], ...], msgspec.Meta(max_length=64)] = ()
    places: Annotated[str, msgspec.Meta(max_length=MOST_VALUES)] = ""


class Event(msgspec.Struct, frozen=True, array_like=True):
    """An event of a Timeline: its lane, by index, its start and its length, and what it is.

    Events of one `group` have the same colour.
    """

    lane: _Index
    start: float
    length: float
    label: Label
    group: Label = ""
    state: State = ""
    detail: Label = ""
    anchor: Label = ""


class Timeline(msgspec.Struct, frozen=True, kw_only=True, tag="timeline", omit_defaults=True):
    """Events in lanes, such as ranks, over `unit`."""

    title: Label
    lanes: Annotated[tuple[Label, ...], msgspec.Meta(max_length=512)]
    events: Annotated[tuple[Event, ...], msgspec.Meta(max_length=2 * MOST_ROWS)]
    unit: Label = ""
    note: Text = ""


class Code(msgspec.Struct, frozen=True, kw_only=True, tag="code", omit_defaults=True):
    """Lines of a file from number `first` on; `marked` is the number of the line that matters.

    `also` are the numbers of other lines that take part, `steps` of those that lead to these, such
    as conditions, and `idle` of those that did not run.  `runs` says which Runs are known to have
    run the line `marked`.
    """

    title: Label
    file: Label
    first: _Index
    lines: Annotated[tuple[Label, ...], msgspec.Meta(max_length=60)]
    marked: _Index
    note: Text = ""
    also: _Lines = ()
    steps: _Lines = ()
    idle: _Lines = ()
    runs: Label = ""


Panel = Table | Series | HeatMap | Graph | Maps | Timeline | Code


class Section(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one judge shows of one test.

    `what` names the judged Run, `text` is the report, "" for a pass, and `notes` say what was not
    compared.  `distinct` is a key that is equal for Sections of one kind; a fuzz test keeps one of
    each.
    """

    judge: Label
    verdict: Literal["pass", "fail", "inconclusive", "error"]
    what: Label = ""
    text: Text = ""
    notes: Annotated[tuple[Text, ...], msgspec.Meta(max_length=200)] = ()
    panels: Annotated[tuple[Panel, ...], msgspec.Meta(max_length=60)] = ()
    distinct: Label = ""


def number(value: float | None) -> float | str | None:
    """A number for a panel: rounded to four digits; text if it is not finite."""
    if value is None or not math.isfinite(value):
        return None if value is None else str(value)
    return float(f"{value:.4g}")
