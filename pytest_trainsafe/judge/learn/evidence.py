"""Evidence for hypotheses: how many examples passed and failed, for each set of features."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from pytest_trainsafe.judge.learn.columns.frame import Records, feature_key
from pytest_trainsafe.judge.learn.conditions import Features
from pytest_trainsafe.judge.learn.invariant import Hypothesis

#: Of one hypothesis in one program: the features and how many examples passed and failed.
Counts = list[tuple[Features, int, int]]


class Examples(Protocol):
    """Receives examples from a relation: inference counts them, and a check judges them."""

    def add(
        self,
        claim: Hypothesis,
        records: Records,
        passed: npt.NDArray[np.bool_],
        where: npt.NDArray[np.bool_] | None = None,
    ) -> None:
        """One example for each record, or for each of those in `where`."""
        ...


class Evidence:
    """Counts the examples of one program."""

    def __init__(self) -> None:
        self._parts: dict[Hypothesis, list[tuple[Sequence[Features], _Ints, _Ints]]] = {}

    def add(
        self,
        claim: Hypothesis,
        records: Records,
        passed: npt.NDArray[np.bool_],
        where: npt.NDArray[np.bool_] | None = None,
    ) -> None:
        """Count one example for each record, or for each of those in `where`."""
        codes, kept = records.codes, passed
        if where is not None:
            codes, kept = codes[where], passed[where]
        size = len(records.features)
        passes = np.bincount(codes[kept], minlength=size)
        self.count(claim, records.features, passes, np.bincount(codes, minlength=size) - passes)

    def count(
        self, claim: Hypothesis, features: Sequence[Features], passes: _Ints, fails: _Ints
    ) -> None:
        """Add counts for each of the features."""
        self._parts.setdefault(claim, []).append((features, passes, fails))

    def counts(self) -> Mapping[Hypothesis, Counts]:
        """What was counted, without hypotheses that had no example."""
        found = {claim: _merged(parts) for claim, parts in self._parts.items()}
        return {claim: counts for claim, counts in found.items() if counts}


_Ints = npt.NDArray[np.int64]


def together(parts: Iterable[Counts]) -> Counts:
    """The sums of several counts."""
    sums: dict[object, tuple[Features, int, int]] = {}
    for counts in parts:
        for features, passed, failed in counts:
            key = feature_key(features)
            _, passes, fails = sums.get(key, (features, 0, 0))
            sums[key] = features, passes + passed, fails + failed
    return list(sums.values())


def _merged(parts: Sequence[tuple[Sequence[Features], _Ints, _Ints]]) -> Counts:
    return together(
        [
            (features[int(at)], int(passes[at]), int(fails[at]))
            for at in np.flatnonzero(passes + fails)
        ]
        for features, passes, fails in parts
    )
