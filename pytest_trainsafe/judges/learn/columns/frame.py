"""Prepares a table for relations: groups calls by API, and finds distinct features of records.

A record is a call or a change of state.  Its features are the named facts that preconditions read,
such as its phase.  All operations are on whole columns, so the cost is nearly linear in the number
of records.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from pytest_trainsafe.judges.learn.columns.light import light_call, light_change
from pytest_trainsafe.judges.learn.conditions import Feature
from pytest_trainsafe.judges.learn.events.events import Change
from pytest_trainsafe.judges.learn.events.table import (
    IS_TENSOR,
    NONE,
    REQUIRES_GRAD,
    ZERO,
    Table,
)
from pytest_trainsafe.judges.learn.features import (
    call_features,
    change_features,
    context_features,
    kind_of,
)
from pytest_trainsafe.judges.learn.names import family, is_incidental, variable

Ints = npt.NDArray[np.int64]
Keys = npt.NDArray[np.uint64]
Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]

_Columns = Mapping[str, npt.NDArray[Any]]

#: An argument with more distinct texts than this in its calls is no feature.
_MAX_DISTINCT = 16


def combine(*columns: npt.NDArray[np.generic]) -> tuple[Ints, Ints]:
    """Numbers the distinct rows of a table with these columns, from 0.

    Returns two arrays.  The first has the number of each row: equal rows have the same number.  The
    second has, for each number, the index of the first row with that number.
    """
    codes = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        values, each = np.unique(column, return_inverse=True)
        codes = codes * len(values) + each.reshape(-1)
        codes = np.unique(codes, return_inverse=True)[1].reshape(-1)
    first = np.unique(codes, return_index=True)[1] if len(codes) else codes
    return codes.astype(np.int64), first.astype(np.int64)


@dataclass(frozen=True)
class Records:
    """Records of one table: calls if `of_calls` is true, otherwise changes.

    `rows` has the row of each record in the table, and `codes` the index in `features` of the
    record's features, the named facts that preconditions read.  `frame` is the table; it is None if
    the code that uses the records has the table already.  If each record is compared with a record
    of another rank, `other` has the other rank's table, and the row of each record's counterpart in
    it.
    """

    rows: Ints
    codes: Ints
    features: Sequence[Mapping[str, Feature]]
    frame: Frame | None = field(default=None, kw_only=True)
    other: tuple[Frame, Ints] | None = field(default=None, kw_only=True)
    of_calls: bool = field(default=True, kw_only=True)

    def only(self, kept: Bools) -> Records:
        """The records of a mask, each with its counterpart."""
        other = None if self.other is None else (self.other[0], self.other[1][kept])
        rows, codes = self.rows[kept], self.codes[kept]
        return Records(
            rows, codes, self.features, frame=self.frame, other=other, of_calls=self.of_calls
        )


@dataclass(frozen=True)
class CallGroup(Records):
    """The calls of one API, in order.

    `slots` maps the name of each argument and result, such as "arg.input", to the row of each
    call's value in `Table.values`, NONE for a call without one.
    """

    api: str
    slots: Mapping[str, Ints]


class Frame:
    """A table whose columns are prepared once for all relations."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self.calls: _Columns = table.calls
        self.changes: _Columns = table.changes
        self.values: _Columns = table.values
        self.steps: _Columns = table.steps
        self.apis: list[str] = []
        #: The code of each call's API; NONE for incidental queries.
        self.api = self._api_codes()
        #: Whether a call returned.
        self.returned: Bools = (table.calls["exit"] != NONE) & (table.calls["exception"] == NONE)
        self.meta_steps = self._meta_numbers("step")
        steps = self.meta_steps[self.meta_steps >= 0]
        self.first_step: int | None = int(steps.min()) if len(steps) else None
        contexts = [context_features(meta, self.first_step) for meta in table.metas]
        known: dict[object, int] = {}
        self.context_of_meta: Ints = np.array(
            [known.setdefault(feature_key(each), len(known)) for each in contexts], np.int64
        )
        self.contexts = contexts
        texts = [xxhash.xxh64_intdigest(text.encode()) for text in table.texts]
        self._text_keys: Keys = np.array([*texts, 0], np.uint64)  # the last key is for NONE
        # Rows of calls, sorted by API; those of an API stay in order.
        self._order = np.argsort(self.api, kind="stable")
        self._bounds = np.searchsorted(self.api[self._order], np.arange(len(self.apis) + 1))

    def entries(self, code: int) -> Ints:
        """Rows of all calls of the API `apis[code]`, returned or not, in the order of entry."""
        return self._order[self._bounds[code] : self._bounds[code + 1]]

    @functools.cached_property
    def groups(self) -> Mapping[str, CallGroup]:
        """The calls of each API that returned, sorted by the name of the API."""
        made = {api: self._group(code, api, self.returned) for code, api in enumerate(self.apis)}
        return {api: made[api] for api in sorted(made) if len(made[api].rows)}

    @functools.cached_property
    def attempts(self) -> Mapping[str, CallGroup]:
        """The calls of each API that returned or raised, sorted by the name of the API."""
        if bool((self.returned == self._ended).all()):
            return self.groups
        made = {api: self._group(code, api, self._ended) for code, api in enumerate(self.apis)}
        return {api: made[api] for api in sorted(made) if len(made[api].rows)}

    @functools.cached_property
    def _ended(self) -> Bools:
        found: Bools = self.calls["exit"] != NONE
        return found

    @functools.cached_property
    def variables(self) -> list[tuple[str, str]]:
        """The observed kinds of variables with an attribute, as ("torch.nn.Parameter", "grad")."""
        return self._variables[0]

    @functools.cached_property
    def variable_of_change(self) -> Ints:
        """For each change, the index in `variables` of the kind and attribute that changed."""
        return self._variables[1]

    @functools.cached_property
    def _variables(self) -> tuple[list[tuple[str, str]], Ints]:
        changes, texts = self.changes, self.table.texts
        codes, first = combine(changes["object"], changes["type"], changes["attribute"])
        names = [
            (
                variable(texts[int(changes["object"][row])], texts[int(changes["type"][row])]),
                texts[int(changes["attribute"][row])],
            )
            for row in first
        ]
        every = sorted(set(names))
        place = {name: index for index, name in enumerate(every)}
        return every, np.array([place[name] for name in names], np.int64)[codes]

    @functools.cached_property
    def kinds(self) -> tuple[list[str], Ints]:
        """The kinds of change, such as "cleared", and the index in them of each change's kind."""
        changes = self.changes
        before, after = changes["before"], changes["after"]
        new = before == NONE
        gradient = np.array([name[1] == "grad" for name in self.variables], bool)
        empty = [
            np.where(gradient[self.variable_of_change], self.empty(rows), self._is_none[rows])
            for rows in (before, after)
        ]
        codes, first = combine(new, *empty, gradient[self.variable_of_change])
        names = [kind_of(self._light_change(int(row))) for row in first]
        every = sorted(set(names))
        return every, np.array([every.index(name) for name in names], np.int64)[codes]

    @functools.cached_property
    def _is_none(self) -> Bools:
        types = [text == "NoneType" for text in self.table.texts]
        return np.array([*types, False], bool)[self.values["type"]]

    def change_records(self, rows: Ints) -> Records:
        """The changes in these rows of `Table.changes`, with the features of each."""
        changes = self.changes
        codes, first = combine(
            self.context_of_meta[changes["meta"][rows]],
            *self._feature_columns(changes["after"][rows]),
        )
        features = [
            change_features(
                self._light_change(int(rows[at])), self.context(int(changes["meta"][rows[at]]))
            )
            for at in first
        ]
        return Records(rows, codes, features, of_calls=False)

    @functools.cached_property
    def interval_of_change(self) -> Ints:
        """The index in `Table.steps` of the step in which each change happened."""
        ends = self.steps["position"]
        return np.searchsorted(ends, self.changes["position"]).astype(np.int64)

    @functools.cached_property
    def complete(self) -> Bools:
        """Whether each change happened in a step that ended."""
        return self.interval_of_change < len(self.steps["position"])

    def at_step_ends(self, code: int) -> Ints:
        """The row of the last change of each object in each step, for one kind of variable.

        `code` is an index in `variables`, and the rows are those of `Table.changes`, sorted by
        object, then by step.
        """
        rows = np.flatnonzero((self.variable_of_change == code) & self.complete)
        objects, intervals = self.changes["object"][rows], self.interval_of_change[rows]
        order = np.lexsort((rows, intervals, objects))
        rows, objects, intervals = rows[order], objects[order], intervals[order]
        last = np.ones(len(rows), bool)
        last[:-1] = (objects[1:] != objects[:-1]) | (intervals[1:] != intervals[:-1])
        return rows[last]

    def context(self, meta: int) -> Mapping[str, Feature]:
        """What preconditions may read of a call's context, such as its phase, by name.

        `meta` is an index in `Table.metas`: the step, phase and so on at the call or change.
        """
        return self.contexts[meta]

    def steps_of(self, metas: Ints) -> Ints:
        """The number of the step in each context; NONE for a context outside of steps.

        A context is the step, phase and so on of records; `metas` has indices in `Table.metas`.
        """
        return self.meta_steps[metas]

    def epochs_of(self, metas: Ints) -> Ints:
        """The epoch in each context, given as in `steps_of`; NONE if epochs are not counted."""
        return self._meta_numbers("epoch")[metas]

    def text_keys(self, texts: Ints) -> Keys:
        """Hashes of texts, given as indices in `Table.texts`; a text has one hash in all tables."""
        return self._text_keys[texts]

    def keys(self, rows: Ints, name: str) -> tuple[Keys, Bools]:
        """Hashes of the property `name` (`features.property_of`), and which values have it.

        `rows` are rows of `Table.values`, or NONE for no value.  Equal properties have equal hashes
        in every table.
        """
        values = self.values
        present = rows != NONE
        at = np.where(present, rows, 0)
        if not len(values["type"]):
            return np.zeros(len(rows), np.uint64), np.zeros(len(rows), bool)
        tensor = present & ((values["bits"][at] & IS_TENSOR) != 0)
        if name == "identity":
            keys = values["identity"][at].astype(np.uint64)
            return keys, present & (keys != 0)
        if name == "digest":
            keys = values["digest"][at].astype(np.uint64)
            return keys, tensor & (keys != 0)
        if name in ("dtype", "device", "shape"):
            return self._text_keys[values[name][at]], tensor
        if name in ("shape[0]", "shape[-1]"):
            numbers, valid = self.numbers(rows, name)
            return numbers.view(np.uint64), valid
        numbers, texts = values["number"][at], values["text"][at]
        kinds = self._text_keys[values["type"][at]]
        # The type is a part of the key, so that True differs from 1 and "1" from 1.
        of_number = (numbers + 0.0).view(np.uint64) ^ np.where(self._is_bool[at], kinds, 0)
        keys = np.where(texts != NONE, self._text_keys[texts] ^ kinds, of_number)
        none = self._is_none[at]
        keys = np.where(none, np.uint64(0x9E3779B97F4A7C15), keys)
        has = none | (texts != NONE) | ~np.isnan(numbers)
        return keys, present & ~tensor & has

    def numbers(self, rows: Ints, name: str) -> tuple[Floats, Bools]:
        """The property `name` as numbers (`features.number_of`), and which values have it.

        `rows` are rows of `Table.values`, or NONE for no value.
        """
        values = self.values
        present = rows != NONE
        at = np.where(present, rows, 0)
        if not len(values["type"]):
            return np.zeros(len(rows)), np.zeros(len(rows), bool)
        if name == "norm":
            norms = values["norm"][at]
            return norms, present & ~np.isnan(norms)
        if name == "value":
            plain: Floats = values["number"][at] + 0.0
            return plain, present & ~np.isnan(plain) & ~self._is_bool[at]
        ends = self._ends[0 if name == "shape[0]" else 1]
        sizes: Floats = ends[values["shape"][at]]
        tensor = (values["bits"][at] & IS_TENSOR) != 0
        return sizes, present & tensor & ~np.isnan(sizes)

    def autocast_keys(self, metas: Ints) -> tuple[Keys, Bools]:
        """Hashes of the autocast dtypes in entries of `Table.metas`, and which entries have one."""
        names = [meta.get("autocast") for meta in self.table.metas]
        keys = [xxhash.xxh64_intdigest(n.encode()) if isinstance(n, str) else 0 for n in names]
        has = np.array([isinstance(name, str) for name in names], bool)
        return np.array(keys, np.uint64)[metas], has[metas]

    def empty(self, rows: Ints) -> Bools:
        """Whether the values in these rows of `Table.values` are None or tensors of zeros."""
        if not len(self.values["type"]):
            return np.zeros(len(rows), bool)
        found: Bools = (self._is_none[rows] | self.bits(rows, ZERO)) & (rows != NONE)
        return found

    def bits(self, rows: Ints, bit: int) -> Bools:
        """Whether the values in these rows of `Table.values` are tensors that have a property.

        `bit` stands for the property: one of ZERO, FINITE, REQUIRES_GRAD, IS_VIEW and IS_TENSOR in
        `judges.learn.events.table`.
        """
        at = np.where(rows != NONE, rows, 0)
        found: Bools = (self.values["bits"][at] & bit) != 0
        found &= rows != NONE
        return found

    @functools.cached_property
    def _is_bool(self) -> Bools:
        types = [text == "bool" for text in self.table.texts]
        return np.array([*types, False], bool)[self.values["type"]]

    @functools.cached_property
    def _ends(self) -> tuple[Floats, Floats]:
        """The first and the last size of each text that is a shape; NaN for other texts."""
        shapes = np.unique(self.values["shape"])
        first, last = (np.full(len(self.table.texts) + 1, np.nan) for _ in range(2))
        for shape in shapes[shapes != NONE]:
            sizes = self.table.texts[int(shape)].split("x")
            if sizes[0]:
                first[shape], last[shape] = float(sizes[0]), float(sizes[-1])
        return first, last

    def _api_codes(self) -> Ints:
        known: dict[str, int] = {}
        codes = np.full(len(self.table.texts) + 1, NONE, np.int64)
        for text in np.unique(self.calls["api"]):
            name = self.table.texts[int(text)]
            if not is_incidental(name):
                codes[text] = known.setdefault(family(name)[0], len(known))
        self.apis = list(known)
        return codes[self.calls["api"]]

    def _meta_numbers(self, name: str) -> Ints:
        numbers = [meta.get(name) for meta in self.table.metas]
        return np.array([each if isinstance(each, int) else NONE for each in numbers], np.int64)

    def _group(self, code: int, api: str, chosen: Bools) -> CallGroup:
        calls = self.calls
        every = self.entries(code)
        rows = every[chosen[every]]
        firsts, counts = calls["values"][rows], calls["arguments"][rows] + calls["results"][rows]
        owner = np.repeat(np.arange(len(rows)), counts)
        starts = np.repeat(firsts - np.cumsum(counts) + counts, counts)
        values = starts + np.arange(len(owner))
        slots: dict[str, Ints] = {}
        places = self.values["place"][values]
        for place in np.unique(places):
            slot = np.full(len(rows), NONE, np.int64)
            here = places == place
            slot[owner[here]] = values[here]
            slots[self.table.texts[int(place)]] = slot
        slots = dict(sorted(slots.items()))
        columns: list[npt.NDArray[np.generic]] = [
            self.context_of_meta[calls["meta"][rows]],
            calls["api"][rows],
        ]
        varied: set[str] = set()
        for place, slot in slots.items():
            if not place.startswith("result"):
                columns += self._feature_columns(slot)
                if self._varies(slot):
                    varied.add(place)
        codes, first = combine(*columns)
        features = [self._call_features(int(rows[at]), varied) for at in first]
        return CallGroup(rows, codes, features, api, slots)

    def _call_features(self, row: int, varied: Collection[str]) -> dict[str, Feature]:
        context = self.context(int(self.calls["meta"][row]))
        features = call_features(light_call(self.table, row), context)
        return {name: each for name, each in features.items() if name not in varied}

    def _varies(self, rows: Ints) -> bool:
        """Whether values have more than `_MAX_DISTINCT` distinct texts, too many for a feature."""
        texts = self.values["text"][rows[rows != NONE]]
        return len(np.unique(texts)) > _MAX_DISTINCT

    def _feature_columns(self, rows: Ints) -> list[npt.NDArray[np.generic]]:
        """The columns of `Table.values` that determine what preconditions read of these values."""
        values = self.values
        if not len(values["type"]):
            return []
        absent = rows == NONE
        at = np.where(absent, 0, rows)
        numbers = np.where(self._is_bool[at] & ~absent, values["number"][at], -1.0)
        texts = np.where(absent | self._varies(rows), NONE, values["text"][at])
        bits = values["bits"][at] & (REQUIRES_GRAD | IS_TENSOR)
        columns = [numbers, texts, np.where(absent, 255, bits)]
        for name in ("type", "dtype", "flags"):
            columns.append(np.where(absent, NONE, values[name][at]))
        return [column for column in columns if len(column) and np.any(column != column[0])]

    def _light_change(self, row: int) -> Change:
        return light_change(self.table, row)


def feature_key(features: Mapping[str, Feature]) -> tuple[tuple[str, str, object], ...]:
    """A hashable form of `features`, which is equal only for equal ones; True differs from 1."""
    return tuple(sorted((name, type(each).__name__, each) for name, each in features.items()))
