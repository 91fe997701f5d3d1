"""Evidence for hypotheses: how many of their examples passed and how many failed.

An example is a case in which a claim is judged: a call, a change, or two of them on two ranks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from pytest_trainsafe.judges.learn.columns.frame import Records, feature_key
from pytest_trainsafe.judges.learn.conditions import Features
from pytest_trainsafe.judges.learn.invariant import Hypothesis

#: For each set of features, how many examples of a hypothesis passed and how many failed.
Counts = list[tuple[Features, int, int]]


class Examples(Protocol):
    """Receives the examples that a relation finds.  Inference counts them; a check judges them."""

    def add(
        self,
        claim: Hypothesis,
        records: Records,
        passed: npt.NDArray[np.bool_],
        where: npt.NDArray[np.bool_] | None = None,
    ) -> None:
        """Receive one example for each record, or for each record that `where` selects.

        `passed` says for each record whether it satisfies the claim.
        """
        ...


class Evidence:
    """Counts the passing and failing examples of each hypothesis in one program."""

    def __init__(self) -> None:
        self._parts: dict[Hypothesis, list[tuple[Sequence[Features], _Ints, _Ints]]] = {}

    def add(
        self,
        claim: Hypothesis,
        records: Records,
        passed: npt.NDArray[np.bool_],
        where: npt.NDArray[np.bool_] | None = None,
    ) -> None:
        """Count one example for each record, or for each record that `where` selects."""
        codes, kept = records.codes, passed
        if where is not None:
            codes, kept = codes[where], passed[where]
        size = len(records.features)
        passes = np.bincount(codes[kept], minlength=size)
        self.count(claim, records.features, passes, np.bincount(codes, minlength=size) - passes)

    def count(
        self, claim: Hypothesis, features: Sequence[Features], passes: _Ints, fails: _Ints
    ) -> None:
        """Add `passes[i]` passing and `fails[i]` failing examples that have `features[i]`."""
        self._parts.setdefault(claim, []).append((features, passes, fails))

    def counts(self) -> Mapping[Hypothesis, Counts]:
        """The numbers of passing and failing examples of each hypothesis that had an example."""
        found = {claim: _merged(parts) for claim, parts in self._parts.items()}
        return {claim: counts for claim, counts in found.items() if counts}


_Ints = npt.NDArray[np.int64]


def together(parts: Iterable[Counts]) -> Counts:
    """Adds up the counts in `parts`: the result has one entry for each distinct set of features."""
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
