"""Checks when an evaluation draws from the training's streams, and when it has dropout on."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_trainsafe.core.point import Point
from pytest_trainsafe.judges.replay.rng.ledger_rules import judge_rng
from pytest_trainsafe.trace.rng.events import DrawEvent
from tests.support.replay.ledger_traces import mask, state, write

SINGLE = Point.of()


def checks(judgement) -> list[str]:
    return [finding.check for finding in judgement.findings]


def evaluation(
    number: int,
    shape: tuple[int, ...] = (3,),
    operator: str = "normal_",
    generator: str = "torch cpu",
    seed: str = "",
    thread: str = "",
):
    return DrawEvent(
        *(generator, "evaluation", state(number), state(number + 1), operator),
        step=1,
        at="train.py:9",
        shape=shape,
        seed=seed,
        thread=thread,
    )


OWN = "torch.Generator of noise.py:3"


def noise(number: int, step: int = 0, seed: str = "", generator: str = OWN) -> DrawEvent:
    """A draw of the training, in a micro-batch, from a generator that the program made."""
    return DrawEvent(
        *(generator, "data", state(number), state(number + 1), "normal_"),
        step=step,
        microbatch=0,
        at="noise.py:3",
        shape=(3,),
        seed=seed,
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
def test_draws_in_an_evaluation_are_reported_only_if_training_continues_from_their_state(
    tmp_path, after, found
):
    trace = write(tmp_path / "a", SINGLE, lambda at: [mask(0), evaluation(1), *after])

    assert checks(judge_rng(trace)) == found


def test_an_evaluation_that_draws_from_the_trainings_own_generator_is_a_shift(tmp_path: Path):
    events = [noise(0), evaluation(1, generator=OWN), noise(2, step=1)]
    [finding] = judge_rng(write(tmp_path / "a", SINGLE, lambda at: events)).findings

    assert finding.check == "rng:evaluation_shift"
    assert f"draws from {OWN}" in finding.message


@pytest.mark.parametrize(
    "events",
    [
        # The state is put back.
        [noise(0), evaluation(1, generator=OWN), noise(1, step=1)],
        # Both have a generator with the same seed, and have drawn equally often.
        [noise(0), evaluation(0, generator=OWN), noise(1, step=1)],
        [noise(0), evaluation(0, generator=OWN), noise(1, step=1), evaluation(1, generator=OWN)],
        # Each has a generator with another seed; the line that draws gives both their name.
        [noise(0), evaluation(5, generator=OWN), noise(1, step=1), evaluation(6, generator=OWN)],
        # The last state of merged draws is that of a generator which was put back meanwhile.
        [evaluation(5, generator=OWN, seed="7"), noise(6, step=1, seed="8")],
        # A thread fetches data of the training meanwhile.
        [noise(0), evaluation(1, generator=OWN, thread="prefetch"), noise(2, step=1)],
        # Only the state at the end of the evaluation is known, and not what drew.
        [
            noise(0, generator="numpy"),
            evaluation(1, operator="", generator="numpy"),
            noise(2, step=1, generator="numpy"),
        ],
    ],
)
def test_a_generator_that_only_the_evaluation_draws_from_shifts_nothing(tmp_path: Path, events):
    assert checks(judge_rng(write(tmp_path / "a", SINGLE, lambda at: events))) == []


def latent(module: str = "latent", generator: str = OWN, training: bool = False) -> DrawEvent:
    """A Bernoulli draw of a module in an evaluation."""
    return DrawEvent(
        *(generator, "evaluation", state(20), state(21), "bernoulli.p"),
        step=1,
        module=module,
        training=training,
        at="model.py:7",
        shape=(4, 4),
        seed="1",
    )


def test_a_bernoulli_draw_from_a_generator_of_the_evaluation_is_no_dropout(tmp_path: Path):
    own = [mask(0), noise(5, seed="2"), latent()]
    shared = [mask(0), noise(5, seed="1"), latent()]

    assert checks(judge_rng(write(tmp_path / "a", SINGLE, lambda at: own))) == []
    found = judge_rng(write(tmp_path / "b", SINGLE, lambda at: shared))
    assert checks(found) == ["rng:evaluation_dropout"]


@pytest.mark.parametrize(
    ("event", "mode", "excuse"),
    [
        (
            latent(generator="torch cpu"),
            "with the model in evaluation mode",
            'expect_rng("latent", ignore="rng:evaluation_dropout"',
        ),
        (
            latent("", "torch cpu", training=True),
            "without gradients, or with a part of the model in evaluation mode",
            'expect_rng("*", ignore="rng:evaluation_dropout"',
        ),
        (
            evaluation(1),
            "with the model in evaluation mode",
            'expect_rng("train.py:9", ignore="rng:evaluation_shift"',
        ),
    ],
)
def test_a_finding_about_evaluation_says_why_it_is_one_and_how_to_excuse_it(
    tmp_path, event, mode, excuse
):
    trace = write(tmp_path / "a", SINGLE, lambda at: [mask(0), event, mask(2, step=1)])
    [finding] = judge_rng(trace).findings

    assert finding.message.endswith(
        f"this counts as evaluation because it runs between two steps {mode}"
    )
    assert finding.pattern is not None
    assert excuse in finding.pattern.cause


def test_a_loader_with_a_generator_of_the_evaluation_is_not_listed(tmp_path: Path):
    events = [mask(0), evaluation(1, (), "random_", OWN), mask(1, step=1)]

    assert judge_rng(write(tmp_path / "a", SINGLE, lambda at: events)).not_compared == ()


def test_a_seed_that_a_data_loader_draws_in_evaluation_is_only_noted(tmp_path: Path):
    events = [mask(0), evaluation(1, (), "random_"), mask(2, step=1)]
    judgement = judge_rng(write(tmp_path / "a", SINGLE, lambda at: events))

    assert checks(judgement) == []
    [note] = judgement.not_compared
    assert note.startswith("a seed that a data loader draws from the training's stream")
