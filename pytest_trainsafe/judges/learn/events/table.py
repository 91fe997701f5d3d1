"""Tables of observed calls and changes, as columns.

Rules are learned from a Table; `file.py` writes a Table to a file, and reads it from the file.

A text is stored as an index into `Table.texts`.  A value is a row of the columns `VALUES`, and a
call has a range of these rows.  Calls and changes are identified by their row numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
import numpy.typing as npt

from pytest_trainsafe.judges.learn.events.events import (
    Call,
    Change,
    Listener,
    Plain,
    TensorFacts,
    Value,
)

#: Stands for no row or no text.
NONE = -1

#: The columns of each table and their NumPy dtypes.
CALLS = {
    # Positions in the order of events: each entry, exit, change and end of a step has one.
    "entry": "i8",
    "exit": "i8",  # NONE for a call that never returned
    "parent": "i8",  # row of the enclosing call
    "api": "i4",  # text
    "thread": "i4",
    "meta": "i4",  # index of Table.metas
    "exception": "i4",  # text
    "values": "i8",  # first row of its values; arguments are before results
    "arguments": "i4",  # number of arguments
    "results": "i4",  # number of results
}
CHANGES = {
    "position": "i8",
    "object": "i4",  # text
    "type": "i4",  # text
    "attribute": "i4",  # text
    "before": "i8",  # row of values
    "after": "i8",  # row of values
    "by": "i8",  # row of a call
    "meta": "i4",
    "changed": "?",
}
VALUES = {
    "place": "i4",  # text: "self", "arg.lr", "result"; NONE for the value of a change
    "type": "i4",  # text
    "number": "f8",  # of bool, int and float; NaN for others
    "text": "i4",  # text of a str and of a value kept as text; the digits of an int beyond 2**53
    "digest": "u8",
    "shape": "i4",  # text "2x3", "" for no dimension
    "dtype": "i4",  # text
    "device": "i4",  # text
    "norm": "f8",  # NaN for none
    "bits": "u1",  # ZERO, FINITE, ...
    "flags": "i4",  # text, joined by ","
    "identity": "i8",
}
STEPS = {"position": "i8", "step": "i8"}
#: The returns of calls that began in an earlier part.
RETURNS = {
    "row": "i8",  # row of the call
    "exit": "i8",
    "exception": "i4",
    "values": "i8",
    "arguments": "i4",
    "results": "i4",
}

#: The most sets of meta variables that are recognised by their id.
_MAX_SAME = 4096

ZERO, FINITE, REQUIRES_GRAD, IS_VIEW, IS_TENSOR = 1, 2, 4, 8, 16

Columns = Mapping[str, npt.NDArray[np.generic]]


@dataclass(frozen=True)
class Table:
    """The calls and changes that the process of one rank observed, and the steps that ended.

    `metas` has the distinct sets of meta variables: the step, the micro-batch, the phase and other
    facts that held at a call or change.
    """

    rank: int
    texts: Sequence[str]
    metas: Sequence[Mapping[str, Plain]]
    calls: Columns
    changes: Columns
    values: Columns
    steps: Columns

    @property
    def records(self) -> int:
        """The number of observed events: two for each call (entry, exit), one for each change."""
        return 2 * len(self.calls["entry"]) + len(self.changes["position"])


@dataclass(frozen=True)
class Part:
    """The data of a TableBuilder since the previous part.  Row numbers continue over parts."""

    texts: Sequence[str]
    metas: Sequence[Mapping[str, Plain]]
    calls: Columns
    changes: Columns
    values: Columns
    steps: Columns
    returns: Columns


class TableBuilder:
    """A Listener that collects a Table, whole or in parts."""

    def __init__(self, rank: int = 0) -> None:
        self._rank = rank
        self._texts: dict[str, int] = {}
        self._metas: dict[tuple[tuple[str, str, Plain], ...], int] = {}
        self._meta_list: list[Mapping[str, Plain]] = []
        self._calls: list[list[object]] = []
        self._changes: list[list[object]] = []
        self._values: list[list[object]] = []
        self._steps: list[list[object]] = []
        #: The row of each call that has not returned, and the call, by the call's id.
        self._open: dict[int, tuple[int, Call]] = {}
        self._position = 0
        #: Sets of meta variables by their id: an observer uses one object for equal ones.
        self._meta_ids: dict[int, tuple[Mapping[str, Plain], int]] = {}
        #: The numbers of calls, values, texts and metas that `take_part` took, and the returns of
        #: such calls since then.
        self._taken_calls = self._taken_values = self._taken_texts = self._taken_metas = 0
        self._returns: list[list[object]] = []

    def entered(self, call: Call) -> None:
        parent = self._row(call.parent)
        row: list[object] = [
            *(self._next(), NONE, parent, self._text(call.api), call.thread),
            *(self._meta(call.meta), NONE, NONE, 0, 0),
        ]
        self._open[id(call)] = self._taken_calls + len(self._calls), call
        self._calls.append(row)

    def left(self, call: Call) -> None:
        number, _ = self._open.pop(id(call))
        places = sorted(call.values, key=lambda place: place.startswith("result"))
        results = sum(place.startswith("result") for place in places)
        exit = self._next()
        exception = self._text(call.exception) if call.exception else NONE
        first = self._taken_values + len(self._values)
        values: list[object] = [first, len(places) - results, results]
        if number < self._taken_calls:
            self._returns.append([number, exit, exception, *values])
        else:
            row = self._calls[number - self._taken_calls]
            row[1], row[6], row[7:] = exit, exception, values
        for place in places:
            self._value(call.values[place], place)

    def changed(self, change: Change) -> None:
        before = NONE if change.before is None else self._value(change.before)
        row: list[object] = [
            *(self._next(), self._text(change.object), self._text(change.type)),
            *(self._text(change.attribute), before, self._value(change.after)),
            *(self._row(change.by), self._meta(change.meta), change.changed),
        ]
        self._changes.append(row)

    def step_ended(self, step: int) -> None:
        self._steps.append([self._next(), step])

    def table(self) -> Table:
        """The table so far. Calls that have not returned have no exit and no values."""
        assert not self._taken_texts, "parts were taken; they make up the table"
        return Table(
            self._rank,
            tuple(self._texts),
            tuple(self._meta_list),
            _columns(CALLS, self._calls),
            _columns(CHANGES, self._changes),
            _columns(VALUES, self._values),
            _columns(STEPS, self._steps),
        )

    @property
    def waiting(self) -> int:
        """The number of rows of values that `take_part` has not taken yet."""
        return len(self._values)

    def take_part(self) -> Part:
        """The data since the last part.  The builder then forgets it."""
        part = Part(
            tuple(islice(self._texts, self._taken_texts, None)),
            tuple(self._meta_list[self._taken_metas :]),
            _columns(CALLS, self._calls),
            _columns(CHANGES, self._changes),
            _columns(VALUES, self._values),
            _columns(STEPS, self._steps),
            _columns(RETURNS, self._returns),
        )
        self._taken_calls += len(self._calls)
        self._taken_values += len(self._values)
        self._taken_texts, self._taken_metas = len(self._texts), len(self._meta_list)
        for rows in (self._calls, self._changes, self._values, self._steps, self._returns):
            rows.clear()
        return part

    def _next(self) -> int:
        self._position += 1
        return self._position - 1

    def _row(self, call: Call | None) -> int:
        known = self._open.get(id(call))
        return NONE if known is None else known[0]

    def _text(self, text: str) -> int:
        return self._texts.setdefault(text, len(self._texts))

    def _meta(self, meta: Mapping[str, Plain]) -> int:
        same = self._meta_ids.get(id(meta))
        if same is not None and same[0] is meta:
            return same[1]
        number = self._new_meta(meta)
        if len(self._meta_ids) < _MAX_SAME:
            self._meta_ids[id(meta)] = meta, number
        return number

    def _new_meta(self, meta: Mapping[str, Plain]) -> int:
        # The type is part of the key: 1, 1.0 and True are equal.
        key = tuple(sorted((name, type(each).__name__, each) for name, each in meta.items()))
        known = self._metas.setdefault(key, len(self._metas))
        if known == len(self._meta_list):
            self._meta_list.append(dict(meta))
        return known

    def _value(self, value: Value, place: str | None = None) -> int:
        plain, facts = value.plain, value.tensor
        number, text = float("nan"), NONE
        if isinstance(plain, str):
            text = self._text(plain)
        elif isinstance(plain, int) and abs(plain) > 2**53:
            text = self._text(str(plain))
        elif plain is not None:
            number = float(plain)
        of_tensor: list[object] = [0, NONE, NONE, NONE, float("nan"), 0, NONE]
        if facts is not None:
            of_tensor = [
                facts.digest,
                self._text("x".join(map(str, facts.shape))),
                self._text(facts.dtype),
                self._text(facts.device),
                float("nan") if facts.norm is None else facts.norm,
                _bits(facts),
                self._text(",".join(facts.flags)),
            ]
        where = NONE if place is None else self._text(place)
        row = [where, self._text(value.type), number, text, *of_tensor, value.identity]
        self._values.append(row)
        return self._taken_values + len(self._values) - 1


def replay(table: Table, listener: Listener) -> None:
    """Calls the methods of `listener` for each call, change and step of a table, in their order.

    For a call that never returned, only `entered` is called; its arguments are not recorded.
    """
    calls, changes, steps = table.calls, table.changes, table.steps
    moments = [(int(at), 0, row) for row, at in enumerate(calls["entry"])]
    moments += [(int(at), 1, row) for row, at in enumerate(calls["exit"]) if at != NONE]
    moments += [(int(at), 2, row) for row, at in enumerate(changes["position"])]
    moments += [(int(at), 3, row) for row, at in enumerate(steps["position"])]
    made: dict[int, Call] = {}
    for _, what, row in sorted(moments):
        if what == 0:
            made[row] = _call(table, row, made)
            listener.entered(made[row])
        elif what == 1:
            call = made[row]
            first = int(calls["values"][row]) + int(calls["arguments"][row])
            call.values.update(_values(table, first, int(calls["results"][row])))
            exception = int(calls["exception"][row])
            call.exception = "" if exception == NONE else table.texts[exception]
            listener.left(call)
        elif what == 2:
            listener.changed(_change(table, row, made))
        else:
            listener.step_ended(int(steps["step"][row]))


def value_at(table: Table, row: int) -> Value:
    """The Value in the row `row` of `table.values`."""
    columns, texts = table.values, table.texts
    bits = int(columns["bits"][row])
    facts = None
    if bits & IS_TENSOR:
        shape = texts[int(columns["shape"][row])]
        flags = texts[int(columns["flags"][row])]
        norm = float(columns["norm"][row])
        facts = TensorFacts(
            digest=int(columns["digest"][row]),
            shape=tuple(map(int, shape.split("x"))) if shape else (),
            dtype=texts[int(columns["dtype"][row])],
            device=texts[int(columns["device"][row])],
            norm=None if norm != norm else norm,
            zero=bool(bits & ZERO),
            finite=bool(bits & FINITE),
            requires_grad=bool(bits & REQUIRES_GRAD),
            is_view=bool(bits & IS_VIEW),
            flags=tuple(flags.split(",")) if flags else (),
        )
    kind = texts[int(columns["type"][row])]
    return Value(kind, _plain(table, row, kind), facts, int(columns["identity"][row]))


def _plain(table: Table, row: int, kind: str) -> Plain:
    number, text = float(table.values["number"][row]), int(table.values["text"][row])
    if kind == "float":
        return number
    if text != NONE:
        return int(table.texts[text]) if kind == "int" else table.texts[text]
    if kind == "bool":
        return bool(number)
    return int(number) if kind == "int" else None


def _call(table: Table, row: int, made: Mapping[int, Call]) -> Call:
    columns = table.calls
    call = Call(
        api=table.texts[int(columns["api"][row])],
        meta=table.metas[int(columns["meta"][row])],
        parent=made.get(int(columns["parent"][row])),
        thread=int(columns["thread"][row]),
    )
    call.values.update(_values(table, int(columns["values"][row]), int(columns["arguments"][row])))
    return call


def _values(table: Table, first: int, count: int) -> dict[str, Value]:
    places = table.values["place"]
    return {
        table.texts[int(places[row])]: value_at(table, row) for row in range(first, first + count)
    }


def _change(table: Table, row: int, made: Mapping[int, Call]) -> Change:
    columns, texts = table.changes, table.texts
    before = int(columns["before"][row])
    return Change(
        object=texts[int(columns["object"][row])],
        type=texts[int(columns["type"][row])],
        attribute=texts[int(columns["attribute"][row])],
        after=value_at(table, int(columns["after"][row])),
        meta=table.metas[int(columns["meta"][row])],
        before=None if before == NONE else value_at(table, before),
        by=made.get(int(columns["by"][row])),
        changed=bool(columns["changed"][row]),
    )


def _bits(facts: TensorFacts) -> int:
    return (
        IS_TENSOR
        | ZERO * facts.zero
        | FINITE * facts.finite
        | REQUIRES_GRAD * facts.requires_grad
        | IS_VIEW * facts.is_view
    )


def _columns(kinds: Mapping[str, str], rows: Sequence[Sequence[object]]) -> Columns:
    return {
        name: np.array([row[index] for row in rows], dtype=kind)
        for index, (name, kind) in enumerate(kinds.items())
    }
