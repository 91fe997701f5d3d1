"""Checks a Table of recorded API calls and changes that was read from a file, before its first use.

A damaged table may, for example, refer to rows or texts that it does not have.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from pytest_trainsafe.judges.learn.events.events import MAX_TEXT
from pytest_trainsafe.judges.learn.events.table import (
    FINITE,
    IS_TENSOR,
    IS_VIEW,
    NONE,
    Columns,
    Table,
)

#: The longest name of an API, an object, a class or a place.
MAX_NAME = 1000

#: The most texts and dimensions, and the longest dimension.
MAX_TEXTS, MAX_DIMENSIONS, MAX_LENGTH = 2**24, 64, 2**40

_SHAPE = re.compile(r"(\d{1,13}(x\d{1,13})*)?", re.ASCII)
_INT = re.compile(rf"-?\d{{1,{MAX_TEXT}}}", re.ASCII)

_Mask = npt.NDArray[np.bool_]

_ALL_BITS = IS_TENSOR | IS_VIEW | FINITE | 1 | 4


def check(table: Table) -> str:
    """The first fault of a table, as a clause for a message; "" if the table is valid."""
    for part in (_texts, _calls, _changes, _values, _positions):
        fault = part(table)
        if fault:
            return fault
    return ""


def _texts(table: Table) -> str:
    if len(table.texts) > MAX_TEXTS or len(table.metas) > MAX_TEXTS:
        return f"it has more than {MAX_TEXTS} texts or sets of meta variables"
    return ""


def _calls(table: Table) -> str:
    calls, texts = table.calls, len(table.texts)
    rows, values = np.arange(len(calls["entry"])), len(table.values["type"])
    first, arguments, results = (_long(calls, n) for n in ("values", "arguments", "results"))
    returned = _long(calls, "exit") != NONE
    faults = (
        (_outside(calls, "api", 0, texts), "the name of its API does not exist"),
        (_outside(calls, "exception", NONE, texts), "the name of its exception does not exist"),
        (_outside(calls, "meta", 0, len(table.metas)), "it has no meta variables"),
        (
            (_long(calls, "parent") < NONE) | (_long(calls, "parent") >= rows),
            "its parent is no earlier call",
        ),
        (
            (arguments < 0) | (results < 0) | (first < NONE) | (first > values),
            "its values do not exist",
        ),
        (
            returned != (first != NONE),
            "it returned without values, or has values and did not return",
        ),
        (~returned & (arguments + results > 0), "it has values and did not return"),
        (returned & (first + arguments + results > values), "its values do not exist"),
        (returned & (_long(calls, "exit") <= _long(calls, "entry")), "it ends before it begins"),
        (_long(calls, "thread") < 0, "its thread is negative"),
    )
    return _first(faults, "calls") or _slices(
        table, first[returned], (arguments + results)[returned]
    )


def _slices(table: Table, first: npt.NDArray[np.int64], counts: npt.NDArray[np.int64]) -> str:
    """Checks which rows of the table's values belong to each call; returns a fault, or "".

    Call number n has `counts[n]` rows, beginning with the row `first[n]`.  No row may belong to two
    calls, and each must have a place: the name of the argument or result, such as "arg.lr".
    """
    owners = np.zeros(len(table.values["type"]) + 1, np.int64)
    np.add.at(owners, first, 1)
    np.add.at(owners, first + counts, -1)
    owners = np.cumsum(owners)[:-1]
    if (owners > 1).any():
        return "two calls refer to the same stored value"
    if ((owners == 1) & (_long(table.values, "place") == NONE)).any():
        return "a value of a call does not say which argument or result it is"
    return ""


def _changes(table: Table) -> str:
    changes, texts, values = table.changes, len(table.texts), len(table.values["type"])
    by = _long(changes, "by")
    faults = [(_outside(changes, name, 0, texts), name) for name in ("object", "type", "attribute")]
    faults += [
        (_outside(changes, "before", NONE, values), "its value before does not exist"),
        (_outside(changes, "after", 0, values), "its value after does not exist"),
        (_outside(changes, "meta", 0, len(table.metas)), "it has no meta variables"),
        (
            _outside(changes, "by", NONE, len(table.calls["entry"])),
            "the call around it does not exist",
        ),
    ]
    fault = _first(faults, "changes")
    if fault:
        return fault
    made = by != NONE
    entries = _long(table.calls, "entry")[by[made]]
    late = entries > _long(changes, "position")[made]
    return "a change was made by a call that began after it" if late.any() else ""


def _values(table: Table) -> str:
    values, texts = table.values, len(table.texts)
    tensor = (values["bits"].astype(np.int64) & IS_TENSOR) != 0
    faults = [
        (_outside(values, "type", 0, texts), "type"),
        *((_outside(values, name, NONE, texts), name) for name in ("place", "text")),
        *(
            (tensor & _outside(values, name, 0, texts), name)
            for name in ("shape", "dtype", "device", "flags")
        ),
        ((values["bits"].astype(np.int64) & ~_ALL_BITS) != 0, "bits"),
        (_long(values, "identity") < 0, "identity"),
    ]
    fault = _first(faults, "values")
    if fault:
        return fault
    for index in np.unique(_long(values, "shape")[tensor]):
        if not _is_shape(table.texts[int(index)]):
            return "the shape of a tensor is not valid"
    return _numbers(table)


def _numbers(table: Table) -> str:
    """Checks the values of the types int and bool; returns a fault, or "".

    An int is stored in the column `number` as a whole number, or in the column `text` as its
    digits.  A bool is stored as the number 0 or 1.
    """
    values, texts = table.values, table.texts
    kinds, held = _long(values, "type"), _long(values, "text")
    numbers = values["number"].astype(np.float64)
    for name in ("int", "bool"):
        mine = kinds == (texts.index(name) if name in texts else NONE - 1)
        plain = numbers[mine & (held == NONE)]
        good = np.isfinite(plain) & (plain == np.floor(plain))
        if name == "bool":
            good &= (plain == 0) | (plain == 1)
        if not good.all():
            return f"a value of the type {name} is not valid"
        for index in np.unique(held[mine & (held != NONE)]):
            if name == "bool" or not _INT.fullmatch(texts[int(index)]):
                return f"a value of the type {name} is not valid"
    return ""


def _positions(table: Table) -> str:
    """Checks that the positions of events are 0, 1, 2 and so on; returns a fault, or ""."""
    exits = _long(table.calls, "exit")
    every = [
        _long(table.calls, "entry"),
        exits[exits != NONE],
        _long(table.changes, "position"),
        _long(table.steps, "position"),
    ]
    positions = np.sort(np.concatenate(every))
    if not np.array_equal(positions, np.arange(len(positions))):
        return "the positions of its events have gaps or duplicates"
    if (_long(table.steps, "step") < 0).any():
        return "a step has a negative number"
    return ""


def _is_shape(text: str) -> bool:
    if not _SHAPE.fullmatch(text):
        return False
    lengths = [int(length) for length in text.split("x")] if text else []
    return len(lengths) <= MAX_DIMENSIONS and all(length <= MAX_LENGTH for length in lengths)


def _long(columns: Columns, name: str) -> npt.NDArray[np.int64]:
    return columns[name].astype(np.int64)


def _outside(columns: Columns, name: str, low: int, high: int) -> _Mask:
    column = _long(columns, name)
    return (column < low) | (column >= high)


def _first(faults: Iterable[tuple[_Mask, str]], table: str) -> str:
    for where, what in faults:
        if where.any():
            return f"row {int(where.argmax())} of its {table} is not valid: {what}"
    return ""
