"""The rules stay silent where a draw is right, and say so where nothing tells whether it is."""

from __future__ import annotations

from pathlib import Path

import pytest
from ledger_traces import mask, state, write

from pytest_trainsafe.core.point import Point
from pytest_trainsafe.judge.replay.ledger_rules import judge_rng
from pytest_trainsafe.trace.rng.events import (
    SWITCHED_OFF,
    DrawEvent,
    LedgerGap,
    UnseenDraws,
    WorkerDraw,
)
from pytest_trainsafe.trace.rng.expectation import expect_rng
from pytest_trainsafe.trace.schema import InputEvent, NoteEvent

SINGLE = Point.of()


def checks(judgement) -> list[str]:
    return [finding.check for finding in judgement.findings]


def test_masks_that_the_reference_repeats_over_micro_batches_are_no_fault(tmp_path: Path):
    def alike(at):
        yield mask(1, microbatch=at["dp"])

    candidate = write(tmp_path / "a", Point.of(dp=2), alike)
    seeded_each = write(tmp_path / "b", SINGLE, lambda at: (mask(1, microbatch=i) for i in (0, 1)))
    seeded_once = write(tmp_path / "c", SINGLE, lambda at: (mask(i, microbatch=i) for i in (0, 1)))

    judgement = judge_rng(candidate, seeded_each)
    assert checks(judgement) == []
    [note] = judgement.not_compared
    assert note.startswith("dropout over dp in drop: the program draws the same numbers for")
    assert checks(judge_rng(candidate, seeded_once)) == ["rng:dp_same_dropout"]
    assert checks(judge_rng(candidate)) == ["rng:dp_same_dropout"]


def test_a_mask_of_the_whole_batch_is_equal_on_ranks_that_each_take_a_slice(tmp_path: Path):
    def whole(at):
        yield InputEvent(0, 0, ("x",))
        yield mask(1, shape=(4, 8))

    def slices(at):
        yield InputEvent(0, 0, ("x",))
        yield mask(1, shape=(2, 8))

    reference = write(tmp_path / "r", SINGLE, whole)

    assert checks(judge_rng(write(tmp_path / "a", Point.of(dp=2), whole), reference)) == []
    found = judge_rng(write(tmp_path / "b", Point.of(dp=2), slices), reference)
    assert checks(found) == ["rng:dp_same_dropout"]


@pytest.mark.parametrize("axis", ["tp", "cp"])
def test_the_size_of_the_reference_draw_tells_a_sharded_region(tmp_path: Path, axis: str):
    reference = write(tmp_path / "r", SINGLE, lambda at: [mask(1, shape=(4, 8))])
    point = Point.of({axis: 2})

    def drawn(name, shape, apart):
        trace = write(tmp_path / name, point, lambda at: [mask(1 + apart * at[axis], shape=shape)])
        return checks(judge_rng(trace, reference))

    assert drawn("sharded", (4, 4), apart=5) == []
    assert drawn("replicated", (4, 8), apart=0) == []
    assert drawn("shared", (4, 4), apart=0) == [f"rng:{axis}_same_dropout"]
    assert drawn("split", (4, 8), apart=5) == [f"rng:{axis}_different_dropout"]


def test_a_size_that_two_axes_explain_decides_nothing_and_is_said(tmp_path: Path):
    reference = write(tmp_path / "r", SINGLE, lambda at: [mask(1, shape=(4, 8))])
    candidate = write(
        tmp_path / "a", Point.of(tp=2, cp=2), lambda at: [mask(1 + at["cp"], shape=(4, 4))]
    )
    judgement = judge_rng(candidate, reference)

    assert checks(judgement) == []
    assert [note.partition(":")[0] for note in judgement.not_compared] == [
        "dropout over tp in drop",
        "dropout over cp in drop",
    ]


def test_one_number_that_decides_for_a_whole_layer_may_be_equal_everywhere(tmp_path: Path):
    def skips_layers(at):
        yield mask(1, shape=(1,), microbatch=at["dp"])

    assert checks(judge_rng(write(tmp_path / "a", Point.of(dp=2), skips_layers))) == []


def test_random_data_outside_of_modules_may_be_equal_on_all_ranks(tmp_path: Path):
    def shuffles(at):
        yield DrawEvent("torch cpu", "data", state(1), state(2), "randperm.generator_out")

    assert checks(judge_rng(write(tmp_path / "a", Point.of(dp=2), shuffles))) == []


def test_a_recomputation_may_stop_early_and_run_in_another_order(tmp_path: Path):
    def reversed_blocks(at):
        for number, module in enumerate(("a", "b", "b")):
            yield mask(number, module=module)
        for number, module in ((2, "b"), (1, "b")):
            yield mask(number, module=module, phase="recomputation")

    assert checks(judge_rng(write(tmp_path / "a", SINGLE, reversed_blocks))) == []


def test_a_recomputation_of_another_modules_numbers_is_found(tmp_path: Path):
    def mixed(at):
        yield mask(1, module="a")
        yield mask(2, module="b")
        yield mask(1, module="b", phase="recomputation")

    [finding] = judge_rng(write(tmp_path / "a", SINGLE, mixed)).findings

    assert finding.check == "rng:recomputation"
    assert state(2) in finding.message


def evaluation(number: int, shape: tuple[int, ...] = (3,), operator: str = "normal_"):
    return DrawEvent(
        *("torch cpu", "evaluation", state(number), state(number + 1), operator),
        step=1,
        at="train.py:9",
        shape=shape,
    )


@pytest.mark.parametrize(
    ("after", "found"),
    [
        ([mask(2, step=1)], ["rng:evaluation_shift"]),
        ([mask(1, step=1)], []),  # put back
        ([mask(9, step=1)], []),  # seeded again
        ([], []),  # nothing else is drawn
    ],
)
def test_an_evaluation_shifts_only_a_stream_that_training_goes_on_with(tmp_path, after, found):
    trace = write(tmp_path / "a", SINGLE, lambda at: [mask(0), evaluation(1), *after])

    assert checks(judge_rng(trace)) == found


def test_the_seed_that_a_loader_draws_in_evaluation_is_noted_and_no_fault(tmp_path: Path):
    events = [mask(0), evaluation(1, (), "random_"), mask(2, step=1)]
    judgement = judge_rng(write(tmp_path / "a", SINGLE, lambda at: events))

    assert checks(judgement) == []
    [note] = judgement.not_compared
    assert note.startswith("a seed that a data loader draws from the training's stream")


def test_workers_of_a_stream_may_shuffle_it_alike(tmp_path: Path):
    def draws(map_style):
        for worker in (0, 1):
            yield WorkerDraw(0, worker, 0, "numpy", state(1), state(2), map_style=map_style)

    assert checks(judge_rng(write(tmp_path / "a", SINGLE, lambda at: draws(False)))) == []
    assert checks(judge_rng(write(tmp_path / "b", SINGLE, lambda at: draws(True)))) == [
        "rng:workers"
    ]


def test_the_workers_of_a_loader_are_ignored_by_the_line_of_the_loader(tmp_path: Path):
    def worker(number, at):
        return WorkerDraw(0, number, 0, "numpy", state(1), state(2), at=at)

    def ignoring(where):
        return expect_rng(where, ignore="rng:workers", reason="all examples get one noise")

    trace = write(
        tmp_path / "a", SINGLE, lambda at: [worker(0, "data.py:35"), worker(1, "data.py:35")]
    )

    for where in ("data.py:35", "data.py:*", "*"):
        judgement = judge_rng(trace, None, [ignoring(where)])
        assert (judgement.findings, judgement.not_compared) == ((), ())
    assert checks(judge_rng(trace, None, [ignoring("other.py:*")])) == ["rng:workers"]


@pytest.mark.parametrize(
    ("event", "words"),
    [
        (
            UnseenDraws("torch cpu", "data", state(1), state(2), 0, 40),
            "drew 40 numbers that were not",
        ),
        (LedgerGap("the default generator of xpu", "its state is not read"), "generator of xpu"),
    ],
)
def test_dropout_whose_draws_the_ledger_does_not_see_is_inconclusive(tmp_path, event, words):
    seen = [NoteEvent("dropout", "0.1"), mask(1), event]
    unseen = [NoteEvent("dropout", "0.1"), event]

    judgement = judge_rng(write(tmp_path / "a", SINGLE, lambda at: seen))
    assert judgement.findings == ()
    assert len(judgement.not_compared) == 1
    [finding] = judge_rng(write(tmp_path / "b", SINGLE, lambda at: unseen)).findings
    assert (finding.verdict, finding.check) == ("inconclusive", "rng:unseen")
    assert words in finding.message


def test_a_trace_without_a_ledger_is_inconclusive(tmp_path: Path):
    trace = write(tmp_path / "a", SINGLE, lambda at: [SWITCHED_OFF])
    [finding] = judge_rng(trace).findings

    assert (finding.verdict, finding.check) == ("inconclusive", "rng:unseen")
    assert "--trainsafe-rng on" in finding.message
