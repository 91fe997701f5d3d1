"""Slip: none of the known slips of training loops happens.

The slips (`events/slips.py`) are said in roles, such as the optimizer, and not in names of one
program, so that rules learned from other programs hold too.  The observer notices them.  A program
in which a slip is meant, such as dropout in evaluation, is a counterexample.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import numpy as np

from pytest_trainsafe.judges.learn.columns.frame import Frame
from pytest_trainsafe.judges.learn.events.slips import SLIP, SLIPS, TRAINING, slip_in
from pytest_trainsafe.judges.learn.evidence import Examples
from pytest_trainsafe.judges.learn.invariant import Hypothesis, hypothesis
from pytest_trainsafe.judges.learn.relation import OWN, Explanation
from pytest_trainsafe.judges.learn.relations.conduct.recorded import RecordedRelation, texts_of

_NAME = TRAINING, SLIP


class Slip(RecordedRelation):
    """The slip `slip` does not happen."""

    name = "slip"
    attribute = SLIP
    forms = ({"slip": tuple(SLIPS)},)

    def hypotheses(self, frames: Sequence[Frame]) -> Iterable[Hypothesis]:
        """Proposes one claim for each slip, if slips were watched for."""
        if any(_NAME in frame.variables for frame in frames):
            for slip in SLIPS:
                yield hypothesis("slip", slip=slip)

    def examples(
        self, frames: Sequence[Frame], claims: Collection[Hypothesis], found: Examples
    ) -> None:
        """Adds an example for each step, and a failing one for each slip."""
        for frame in frames:
            if _NAME not in frame.variables:
                continue
            rows, texts = texts_of(frame, SLIP)
            slips = [slip_in(text) for text in texts]
            records = frame.change_records(rows)
            for claim in claims:
                passed = np.array([slip != claim["slip"] for slip in slips], bool)
                found.add(claim, records, passed)

    def prior(self, claim: Hypothesis) -> int:
        """1, the neutral number; `OWN` for a slip that is often meant."""
        return OWN if SLIPS[claim.text("slip")].often else 1

    def judge(self, text: str, claim: Hypothesis) -> tuple[bool, str]:
        """Whether the text names another slip than the claim's, or none."""
        passed = slip_in(text) != claim["slip"]
        return passed, "" if passed else text.partition(": ")[2]

    def explain(self, claim: Hypothesis) -> Explanation:
        """The rule in plain words."""
        known = SLIPS[claim.text("slip")]
        return Explanation(known.rule, known.causes)
