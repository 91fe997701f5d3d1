"""The rules report no correct draw, and note the draws that they cannot judge."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from pytest_trainsafe.core.code_files import relative
from pytest_trainsafe.core.point import Point
from pytest_trainsafe.core.tensor_id import TensorId
from pytest_trainsafe.judges.replay.rng.draws import Draws, describe_draw
from pytest_trainsafe.judges.replay.rng.ledger_rules import judge_rng
from pytest_trainsafe.judges.replay.rng.text import message
from pytest_trainsafe.report import sections
from pytest_trainsafe.report.panels import Code
from pytest_trainsafe.sweep.expectation import expect_rng
from pytest_trainsafe.trace.rng.events import (
    SWITCHED_OFF,
    DrawEvent,
    LedgerGap,
    UnseenDraws,
    WorkerDraw,
)
from pytest_trainsafe.trace.schema import InputEvent, NoteEvent, TensorEvent
from tests.support.replay.ledger_traces import mask, state, write

SINGLE = Point.of()


def checks(judgement) -> list[str]:
    return [finding.check for finding in judgement.findings]


def test_equal_dropout_on_dp_ranks_is_only_noted_if_the_reference_repeats_it_per_micro_batch(
    tmp_path: Path,
):
    def same_mask(at):
        yield mask(1, microbatch=at["dp"])

    candidate = write(tmp_path / "a", Point.of(dp=2), same_mask)
    seeded_each = write(tmp_path / "b", SINGLE, lambda at: (mask(1, microbatch=i) for i in (0, 1)))
    seeded_once = write(tmp_path / "c", SINGLE, lambda at: (mask(i, microbatch=i) for i in (0, 1)))

    judgement = judge_rng(candidate, seeded_each)
    assert checks(judgement) == []
    [note] = judgement.not_compared
    assert note.startswith("dropout over dp in drop: the program draws the same numbers for")
    assert checks(judge_rng(candidate, seeded_once)) == ["rng:dp_same_dropout"]
    judgement = judge_rng(candidate)
    assert checks(judgement) == ["rng:dp_same_dropout"]
    assert judgement.facts == [("axis", "dp: ranks 0, 1 draw equal numbers there")]


def test_equal_dropout_on_dp_ranks_passes_only_if_they_draw_the_mask_of_the_whole_batch(
    tmp_path: Path,
):
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
def test_the_size_of_the_references_mask_distinguishes_sharded_and_replicated_dropout(
    tmp_path: Path, axis: str
):
    reference = write(tmp_path / "r", SINGLE, lambda at: [mask(1, shape=(4, 8))])
    point = Point.of({axis: 2})

    def drawn(name, shape, offset):
        trace = write(tmp_path / name, point, lambda at: [mask(1 + offset * at[axis], shape=shape)])
        return checks(judge_rng(trace, reference))

    assert drawn("sharded", (4, 4), offset=5) == []
    assert drawn("replicated", (4, 8), offset=0) == []
    assert drawn("shared", (4, 4), offset=0) == [f"rng:{axis}_same_dropout"]
    assert drawn("split", (4, 8), offset=5) == [f"rng:{axis}_different_dropout"]


def test_a_mask_size_that_either_of_two_axes_explains_is_noted_and_not_judged(tmp_path: Path):
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


def test_a_draw_of_a_single_number_may_be_equal_on_all_dp_ranks(tmp_path: Path):
    def skips_layers(at):
        yield mask(1, shape=(1,), microbatch=at["dp"])

    assert checks(judge_rng(write(tmp_path / "a", Point.of(dp=2), skips_layers))) == []


@pytest.mark.parametrize(
    ("shape", "output", "operator", "found"),
    [
        ((4, 1, 1), (4, 3, 8), "uniform_", ["rng:dp_same_dropout"]),  # stochastic depth
        ((4, 3, 8), (4, 3, 8), "uniform_", []),  # noise
        ((4, 1, 1), (4, 1, 1), "uniform_", []),
        ((8, 1, 1), (4, 3, 8), "uniform_", []),
        ((4, 1, 1), (4, 3), "uniform_", []),
        ((4,), (4, 8), "uniform_", []),
        ((1, 1, 1), (1, 3, 8), "uniform_", []),  # may decide on the whole layer
        ((4, 1, 1), (4, 3, 8), "normal_", []),
    ],
)
def test_a_uniform_number_for_each_row_of_a_modules_output_counts_as_its_mask(
    tmp_path, shape, output, operator, found
):
    def drops_rows(at):
        id = TensorId(0, at["dp"], "activation", "path", "output")
        yield msgspec.structs.replace(
            mask(1, module="path", shape=shape, microbatch=at["dp"]), operator=operator
        )
        yield TensorEvent(1, id, "float32", output, "0" * 32)

    judgement = judge_rng(write(tmp_path / "a", Point.of(dp=2), drops_rows))

    assert checks(judgement) == found
    assert all("draw the same random numbers for" in f.message for f in judgement.findings)


def test_a_data_shuffle_outside_modules_may_be_equal_on_all_ranks(tmp_path: Path):
    def shuffles(at):
        yield DrawEvent("torch cpu", "data", state(1), state(2), "randperm.generator_out")

    assert checks(judge_rng(write(tmp_path / "a", Point.of(dp=2), shuffles))) == []


def test_a_recomputation_may_stop_early_and_recompute_in_another_order(tmp_path: Path):
    def reversed_blocks(at):
        for number, module in enumerate(("a", "b", "b")):
            yield mask(number, module=module)
        for number, module in ((2, "b"), (1, "b")):
            yield mask(number, module=module, phase="recomputation")

    assert checks(judge_rng(write(tmp_path / "a", SINGLE, reversed_blocks))) == []


def test_a_recomputation_with_another_modules_numbers_is_reported(tmp_path: Path):
    def mixed(at):
        yield mask(1, module="a")
        yield mask(2, module="b")
        yield mask(1, module="b", phase="recomputation")

    [finding] = judge_rng(write(tmp_path / "a", SINGLE, mixed)).findings

    assert finding.check == "rng:recomputation"
    assert state(2) in finding.message


def in_function(number: int, microbatch: int | None, **fields) -> DrawEvent:
    """A dropout that a training loop calls itself, outside of modules."""
    return DrawEvent(
        *(fields.pop("generator", "torch cpu"), "data", state(number), state(number + 1)),
        fields.pop("operator", "bernoulli_.float"),
        microbatch=microbatch,
        at="train.py:9",
        shape=fields.pop("shape", (4, 8)),
    )


def test_dropout_that_a_function_draws_outside_of_modules_differs_over_dp(tmp_path: Path):
    def alike(at):
        yield in_function(1, at["dp"])

    def apart(at):
        yield in_function(1 + at["dp"], at["dp"])

    [finding] = judge_rng(write(tmp_path / "a", Point.of(dp=2), alike)).findings
    assert finding.check == "rng:dp_same_dropout"
    assert "bernoulli (4x8) at train.py:9" in finding.message
    assert checks(judge_rng(write(tmp_path / "b", Point.of(dp=2), apart))) == []


def test_a_function_whose_dropout_the_reference_repeats_is_listed_by_its_line(tmp_path: Path):
    def twice(at):
        yield from (in_function(1, microbatch) for microbatch in (0, 1))

    candidate = write(tmp_path / "a", Point.of(dp=2), lambda at: [in_function(1, at["dp"])])
    judgement = judge_rng(candidate, write(tmp_path / "r", SINGLE, twice))

    assert checks(judgement) == []
    [note] = judgement.not_compared
    assert note.startswith("dropout over dp in train.py:9: the program draws the same numbers")


@pytest.mark.parametrize(
    "fields",
    [
        {"microbatch": None},  # data that all ranks draw alike, and divide
        {"operator": "bernoulli_.Tensor"},  # torch.bernoulli selects tokens to mask
        {"operator": "normal_"},
        {"generator": "torch.Generator of train.py:9"},  # dropout takes no generator
        {"shape": (1,)},
    ],
)
def test_other_draws_outside_of_modules_may_be_equal_over_dp(tmp_path: Path, fields):
    def alike(at):
        yield in_function(1, **{"microbatch": at["dp"], **fields})

    assert checks(judge_rng(write(tmp_path / "a", Point.of(dp=2), alike))) == []


def jitter(number: int, phase, at: str = "router.py:5", generator: str = "torch cpu", **fields):
    """Noise that a module or, without `module`, a function draws in a micro-batch."""
    return DrawEvent(
        *(generator, phase, state(number), state(number + 1), fields.pop("operator", "normal_")),
        microbatch=0,
        module=fields.pop("module", "router"),
        at=at,
        shape=(4, 8),
        **fields,
    )


@pytest.mark.parametrize(
    ("generator", "operator", "cause"),
    [
        ("torch cpu", "exponential_", "use preserve_rng_state=True"),
        ("python random", "random.random", "restores only torch's default generators"),
    ],
)
def test_a_recomputation_must_repeat_every_draw_of_its_forward(
    tmp_path, generator, operator, cause
):
    def recomputed(number):
        for phase, at in (("forward", 1), ("recomputation", number)):
            yield jitter(at, phase, generator=generator, operator=operator)

    assert checks(judge_rng(write(tmp_path / "a", SINGLE, lambda at: recomputed(1)))) == []
    [finding] = judge_rng(write(tmp_path / "b", SINGLE, lambda at: recomputed(2))).findings
    assert finding.check == "rng:recomputation"
    assert finding.pattern is not None
    assert cause in finding.pattern.cause


@pytest.mark.parametrize(
    "fields",
    [
        {"at": "hook.py:3"},  # a hook of gradients, in a module that calls the backward
        {"module": None},  # the same line rounds gradients in a backward inside a checkpoint
    ],
)
def test_noise_that_is_added_to_gradients_repeats_no_draw_of_a_forward(tmp_path, fields):
    events = [jitter(1, "forward"), jitter(2, "recomputation", **fields)]

    assert checks(judge_rng(write(tmp_path / "a", SINGLE, lambda at: events))) == []


def test_a_recomputed_function_repeats_the_dropout_that_it_draws_without_a_module(tmp_path: Path):
    def called(number, count=1):
        for at in (1, 4):
            yield jitter(at, "data", module=None, operator="bernoulli_.float", count=count)
        yield jitter(number, "recomputation", module=None, operator="bernoulli_.float")

    assert checks(judge_rng(write(tmp_path / "a", SINGLE, lambda at: called(4)))) == []
    found = judge_rng(write(tmp_path / "b", SINGLE, lambda at: called(2)))
    assert checks(found) == ["rng:recomputation"]
    # The ledger has only the first and the last state of draws that it merges.
    assert checks(judge_rng(write(tmp_path / "c", SINGLE, lambda at: called(2, count=3)))) == []


def test_workers_of_an_iterable_dataset_may_draw_the_same_numbers(tmp_path: Path):
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
def test_dropout_without_recorded_draws_is_inconclusive(tmp_path, event, words):
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


@pytest.mark.parametrize(
    ("operator", "generator", "words"),
    [
        ("random_.from", "torch cpu", "random integers (3) at train.py:9"),
        ("normal_", "torch cpu", "normal (3) at train.py:9"),
        ("random.gauss", "python random", "random.gauss at train.py:9"),
        ("", "numpy", "a draw of unknown size at train.py:9"),
    ],
)
def test_a_draw_is_described_by_what_is_known_of_it(tmp_path, operator, generator, words):
    event = DrawEvent(
        *(generator, "data", state(1), state(2), operator), at="train.py:9", shape=(3,)
    )
    [[draw]] = Draws.of(write(tmp_path / "a", SINGLE, lambda at: [event])).by_rank

    assert describe_draw(draw) == words


def test_a_finding_and_its_panels_name_the_lines_that_seed_the_generator(tmp_path: Path):
    program = tmp_path / "train.py"
    program.write_text("import torch\ntorch.manual_seed(1)\ntorch.set_rng_state(kept)\ndrop(x)\n")
    line = {n: f"{program}:{n}" for n in (2, 3, 4)}

    def alike(at):
        yield msgspec.structs.replace(
            in_function(1, at["dp"]), at=line[4], seeded=line[2], restored=line[3]
        )

    sections.begin()
    try:
        judgement = judge_rng(write(tmp_path / "a", Point.of(dp=2), alike))
    finally:
        sections.end()

    [finding] = judgement.findings
    said = f"seeded at {relative(line[2])}, its state set at {relative(line[3])}"
    assert said in finding.message
    code = [panel for panel in judgement.drawn if isinstance(panel, Code)]
    assert [(each.title, each.marked) for each in code] == [
        ("Source: the draw", 4),
        ("Source: where its generator is seeded", 2),
        ("Source: where its state is set", 3),
    ]


@pytest.mark.parametrize(
    ("states", "seeds", "first"),
    [
        ((1, 1), ("5", "5"), "seed"),
        ((1, 1), ("5", "6"), "draw"),  # something else than the seeds made them equal
        ((1, 1), ("", ""), "draw"),
        ((1, 2), ("5", "6"), "seed"),
        ((1, 2), ("5", "5"), "draw"),  # one rank drew more
    ],
)
def test_the_line_that_seeds_is_the_one_to_look_at_if_the_seeds_decide(
    tmp_path: Path, states: tuple[int, int], seeds: tuple[str, str], first: str
):
    program = tmp_path / "train.py"
    program.write_text("import torch\ntorch.manual_seed(1)\ndrop(x)\n")
    line = {"seed": f"{program}:2", "draw": f"{program}:3"}

    def drawn(at):
        rank = at["dp"]
        yield msgspec.structs.replace(
            mask(states[rank], microbatch=rank),
            at=line["draw"], seeded=line["seed"], seed=seeds[rank],
        )  # fmt: skip

    rules = [] if states == (1, 1) else [expect_rng("drop", same="dp")]
    sections.begin()
    try:
        trace = write(tmp_path / "a", Point.of(dp=2), drawn)
        judgement = judge_rng(trace, rules=rules)
    finally:
        sections.end()

    [finding] = judgement.findings
    assert finding.source == line[first]
    code = next(panel for panel in judgement.drawn if isinstance(panel, Code))
    assert code.file == relative(line[first])
    assert f"look at       {relative(line[first])}" in message(judgement)
