"""Finds the calls in which calls and changes happened, with operations on columns."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from pytest_trainsafe.judges.learn.columns.frame import Frame, Ints
from pytest_trainsafe.judges.learn.events.table import NONE


def ancestors(frame: Frame, start: Ints) -> Iterator[tuple[Ints, Ints]]:
    """Walk outwards from calls, one level of nesting at a time.

    `start` has rows of `frame.calls`, the innermost calls, or NONE; they are the first level.  The
    next level has the calls around them.  Yields for each level the indices in `start` that still
    have a call, and the rows of these calls.
    """
    parents = frame.calls["parent"]
    index = np.flatnonzero(start != NONE)
    rows = start[index]
    while len(index):
        yield index, rows
        outer = parents[rows]
        index, rows = index[outer != NONE], outer[outer != NONE]


def pairs_by_api(
    frame: Frame, start: Ints, events: Ints, count: int
) -> Iterator[tuple[str, Ints, Ints]]:
    """Find for each API which of its calls contain which kinds of events, each pair once.

    `start` has the row in `frame.calls` of the innermost call around each event.  `events` has the
    number of each event's kind, from 0 to `count` - 1; events with a negative number are left out.
    Yields the API and two arrays.  For each pair, they have the position of the call in
    `Frame.groups[api]`, and the number of the event's kind.
    """
    position = np.full(len(frame.api), NONE, np.int64)
    for group in frame.groups.values():
        position[group.rows] = np.arange(len(group.rows))
    found = [np.zeros(0, np.int64)]
    for index, rows in ancestors(frame, np.where(events < 0, NONE, start)):
        known = (frame.api[rows] != NONE) & (position[rows] != NONE)
        found.append(np.unique(rows[known] * count + events[index[known]]))
    pairs = np.unique(np.concatenate(found))
    rows, codes = pairs // max(count, 1), pairs % max(count, 1)
    apis = frame.api[rows]
    order = np.argsort(apis, kind="stable")
    rows, codes, apis = rows[order], codes[order], apis[order]
    bounds = np.searchsorted(apis, np.arange(len(frame.apis) + 1))
    for code, api in enumerate(frame.apis):
        part = slice(bounds[code], bounds[code + 1])
        if bounds[code] < bounds[code + 1]:
            yield api, position[rows[part]], codes[part]
