"""The sets of the exam, by number: the cases, and the programs without a mistake."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

import exam2_cases
import exam3_cases
import exam4_cases
import exam5_cases
import exam6_cases
import exam7_cases
import exam8_cases
import exam_cases
from exam_cases import Case, Program

Set = tuple[Sequence[Case], Sequence[Program]]

SETS: Mapping[int, Set] = {
    1: (exam_cases.CASES, exam_cases.HEALTHY),
    2: (exam2_cases.CASES, exam2_cases.HEALTHY),
    3: (exam3_cases.CASES, exam3_cases.HEALTHY),
    4: (exam4_cases.CASES, exam4_cases.HEALTHY),
    5: (exam5_cases.CASES, exam5_cases.HEALTHY),
    6: (exam6_cases.CASES, exam6_cases.HEALTHY),
    7: (exam7_cases.CASES, exam7_cases.HEALTHY),
    8: (exam8_cases.CASES, exam8_cases.HEALTHY),
}


def halves(number: int, seed: int) -> tuple[Set, Set]:
    """A random half of a set, and what it leaves out."""
    cases, healthy = SETS[number]
    draw = random.Random(seed)
    half = draw.sample(cases, len(cases) // 2), draw.sample(healthy, len(healthy) // 2)
    others = [each for each in cases if each not in half[0]]
    return half, (others, [each for each in healthy if each not in half[1]])
