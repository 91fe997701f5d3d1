"""Cases of the exam differ from their healthy twins, and the twins train."""

from __future__ import annotations

import importlib.util
import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.end_to_end import inner_pytest

if TYPE_CHECKING:
    from exam_cases import Case

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks" / "learn_exam"

# One of each way to show a difference: by weights, by a property that holds in healthy runs, by
# what was done, by the loss.
SAMPLE = ("optimizer_plain_list", "tying_never", "scheduler_twice", "accumulation_cleared")
# Of the second set: one that the loss shows.
SAMPLE_2 = ("story_decoder",)
# Of the third set: one that a property shows, and one that what is done after training shows.
SAMPLE_3 = ("atom_sets", "sensor_imputer")
# Of the fourth set: one that a property shows.
SAMPLE_4 = ("vessel_masks",)
# Of the fifth set: one that what is done after training shows.
SAMPLE_5 = ("leaf_average",)
# Of the sixth set: one that an average of the weights shows.
SAMPLE_6 = ("dune_denoiser",)
# Of the seventh set: one that the evaluation alone shows.
SAMPLE_7 = ("lichen_photos",)
# Of the eighth set: one that a second session alone shows.
SAMPLE_8 = ("swell_forecast",)

#: The step in which a program goes on with other data, whose losses are compared.
OTHER_DATA = {"chat_tuning": 10}

#: The number of a set.
each_set = pytest.mark.parametrize("number", [1, 2, 3, 4, 5, 6, 7, 8])

Series = dict[str, list[float]]

#: In a process that has imported torch, which takes as long as the training of some sets.
RUN = """
import sys, warnings

warnings.simplefilter("ignore")
sys.path.insert(0, sys.argv.pop(1))
import exam_run

exam_run.main()
"""


@pytest.fixture(autouse=True)
def exam(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(FOLDER)


def ran(folder: Path, *arguments: str) -> list[list[Series]]:
    """What each rank returned, for each run that `exam_run.py` makes of these arguments."""
    done = inner_pytest.script(RUN, [str(FOLDER), *arguments], folder)
    assert done.returncode == 0, done.stderr
    return [json.loads(line)["ranks"] for line in done.stdout.splitlines()]


def falls(series: list[float]) -> bool:
    """Whether the last quarter of a series is below the first on average."""
    part = max(1, len(series) // 4)
    return sum(series[-part:]) < sum(series[:part])


def unhealthy(case: Case, ranks: list[Series]) -> list[str]:
    """Why a run of the healthy twin of `case` is not healthy."""
    losses = [rank["loss"][OTHER_DATA.get(case.name, 0) :] for rank in ranks]
    reasons = [f"{case.name}: the loss does not fall" for each in losses if not falls(each)]
    if case.zero is not None and any(any(rank[case.zero]) for rank in ranks):
        reasons.append(f"{case.name}: {case.zero} is not zero")
    return reasons


def alike(case: Case, healthy: list[Series], faulty: list[Series]) -> list[str]:
    """Why the mistake of `case` does not show."""
    pairs = [
        pair
        for one, other in zip(healthy, faulty, strict=True)
        for pair in zip(one[case.differs], other[case.differs], strict=True)
    ]
    if max(abs(one - other) for one, other in pairs) > 1e-6:
        return []
    return [f"{case.name}: {case.differs} is the same with and without the mistake"]


def judged(folder: Path, number: int, names: tuple[str, ...]) -> list[str]:
    """What is wrong with the variants of the named cases of a set, or of all without names."""
    from exam_sets import SETS

    cases = [case for case in SETS[number][0] if not names or case.name in names]
    runs = ran(folder, "--set", str(number), "variants", *names)
    assert len(runs) == 2 * len(cases)
    wrong = []
    for case, healthy, faulty in zip(cases, runs[::2], runs[1::2], strict=True):
        wrong += unhealthy(case, healthy) + alike(case, healthy, faulty)
    return wrong


def test_each_case_and_program_is_described_once_and_can_be_imported() -> None:
    from exam_cases import CASES
    from exam_sets import SETS

    described = [each for programs in SETS.values() for part in programs for each in part]
    assert len({each.name for each in described}) == len(described)
    listed = {each.module for each in described}
    data = {"exam_cases", "exam2_cases", "exam3_cases", "exam4_cases", "exam5_cases"}
    data |= {"exam6_cases", "exam7_cases", "exam8_cases", "exam_sets", "exam_run"}
    assert listed == {path.stem for path in FOLDER.glob("*.py")} - data
    assert all(importlib.util.find_spec(module) is not None for module in listed)
    assert all(case.name.startswith(case.kind) for case in CASES)
    for case in (case for cases, _ in SETS.values() for case in cases):
        assert case.source.startswith("https://")
        assert min(map(len, (case.trigger, case.cause, case.said))) > 10


def test_each_case_has_patterns_of_its_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    from exam_sets import SETS

    monkeypatch.syspath_prepend(FOLDER.parent)
    from _exam_causes import CAUSES, names_cause

    assert set(CAUSES) == {case.name for cases, _ in SETS.values() for case in cases}
    assert names_cause("warm_start", "some key of a state fits | Load_State_Dict")
    assert not names_cause("warm_start", "gradients are finite")
    assert names_cause("atom_sets", "Embedding.padding_idx is 0")
    assert not names_cause("atom_sets", "gradients are finite")


def test_each_kind_has_several_cases_and_two_other_healthy_programs() -> None:
    from exam_cases import CASES, HEALTHY

    cases = Counter(case.kind for case in CASES)
    programs = Counter(program.kind for program in HEALTHY)
    assert min(cases.values()) >= 3
    assert all(programs[kind] >= 2 for kind in cases)
    assert programs["general"] >= 20


def test_a_twin_that_does_not_train_and_a_mistake_without_effect_are_noticed() -> None:
    from exam_cases import CASES

    (case,) = (case for case in CASES if case.name == "tying_never")
    good: list[Series] = [{"loss": [2.0, 1.0], "gap": [0.0, 0.0]}]
    bad: list[Series] = [{"loss": [1.0, 2.0], "gap": [0.0, 0.5]}]

    assert not unhealthy(case, good)
    assert len(unhealthy(case, bad)) == 2
    assert not alike(case, good, bad)
    assert alike(case, good, good)


@pytest.mark.parametrize(
    ("number", "names"),
    [
        (1, SAMPLE),
        (2, SAMPLE_2),
        (3, SAMPLE_3),
        (4, SAMPLE_4),
        (5, SAMPLE_5),
        (6, SAMPLE_6),
        (7, SAMPLE_7),
        (8, SAMPLE_8),
    ],
)
def test_the_variants_of_a_sample_differ_and_its_twins_are_healthy(
    tmp_path: Path, number: int, names: tuple[str, ...]
) -> None:
    assert judged(tmp_path, number, names) == []


@each_set
@pytest.mark.slow
def test_the_variants_of_all_cases_differ_and_their_twins_are_healthy(
    tmp_path: Path, number: int
) -> None:
    assert judged(tmp_path, number, ()) == []


@each_set
@pytest.mark.slow
def test_twins_are_healthy_with_other_seeds_and_sizes(tmp_path: Path, number: int) -> None:
    from exam_sets import SETS

    expected = [case for case in SETS[number][0] for _ in case.own_healthy]
    found = ran(tmp_path, "--set", str(number), "own")
    runs: list[tuple[Case, Any]] = list(zip(expected, found, strict=True))
    assert [reason for case, ranks in runs for reason in unhealthy(case, ranks)] == []


@each_set
@pytest.mark.slow
def test_programs_without_a_mistake_train(tmp_path: Path, number: int) -> None:
    from exam_sets import SETS

    runs = zip(SETS[number][1], ran(tmp_path, "--set", str(number), "others"), strict=True)
    assert [p.name for p, ranks in runs if not all(falls(rank["loss"]) for rank in ranks)] == []
