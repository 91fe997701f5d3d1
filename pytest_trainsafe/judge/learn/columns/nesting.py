"""Which calls each call and each change happened in, as columns."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from pytest_trainsafe.judge.learn.columns.frame import Frame, Ints
from pytest_trainsafe.trace.observed.table import NONE


def ancestors(frame: Frame, start: Ints) -> Iterator[tuple[Ints, Ints]]:
    """Level by level, the indices in `start` and the rows of the calls at this distance.

    `start` has the rows of the innermost calls, NONE for none; they are the first level.
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
    """For each API: which of its calls contains which events, each pair once.

    Yields the API, positions in `Frame.groups[api]` and codes of events below `count`.  `start`
    has the innermost call of each event; events with a negative code are left out.
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
