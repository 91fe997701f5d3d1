"""Checks that an evaluation draws nothing from the random streams of the training."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from pytest_trainsafe.core.finding import Finding
from pytest_trainsafe.judges.replay.rng.draws import Draw, Draws, describe_draw, stream_of
from pytest_trainsafe.judges.replay.rng.finding import violation
from pytest_trainsafe.judges.replay.rng.parallel import Excused
from pytest_trainsafe.trace.rng.events import MASKS, NUMPY, PYTHON

#: Phases of the training whose draws influence its results.
_TRAINING = frozenset({"forward", "backward", "optimizer"})


def evaluation_dropout(draws: Draws, excused: Excused) -> Iterator[Finding]:
    """Checks that no dropout is active during evaluation. Yields at most one finding.

    Draws from a generator of the program that only evaluations draw from do not count: dropout
    of torch draws from the default generators.
    """
    check = "rng:evaluation_dropout"
    for rank in draws.by_rank:
        trained = {_stream(draw) for draw in rank if draw.event.phase != "evaluation"}
        for draw in rank:
            event = draw.event
            if event.phase != "evaluation" or not _is_dropout(draw) or excused(check, draw):
                continue
            if not _is_default(event.generator) and _stream(draw) not in trained:
                continue
            message = (
                f"rank {draw.rank.rank} makes a Bernoulli draw, as dropout does, while it "
                f"evaluates its model, before step {event.step}: {describe_draw(draw)} draws from "
                f"{stream_of(draw)}; {_why_evaluation(draw)}"
            )
            cause = (
                "the module is in training mode: call model.eval() before the evaluation, and "
                "model.train() after it"
                if event.training
                else "the module is in evaluation mode: if this is dropout, pass "
                "training=self.training to the function; if the evaluation needs this draw, pass "
                "it a generator of its own"
            )
            yield violation(check, message, f"{cause}. {_excuse(check, draw)}", draw)
            return


def evaluation_shift(draws: Draws, excused: Excused, seeds: set[str]) -> Iterator[Finding]:
    """Checks that an evaluation does not advance a random stream of the training.

    Yields at most one finding. It is not a fault if the stream is restored or seeded again
    before the training draws from it. Nor is it a fault if a torch loader draws its seed, as
    every program does that evaluates with a loader; the lines of these draws are added to
    `seeds`. Draws of dropout are left to `evaluation_dropout`.
    """
    for rank in draws.by_rank:
        known: defaultdict[str, _States] = defaultdict(_States)
        for draw in rank:
            event = draw.event
            states = known[event.generator]
            if event.phase == "evaluation":
                if is_loader_seed(draw) and _is_default(event.generator):
                    seeds.add(event.line)
                began = states.evaluation.pop(event.before, None)
                if began is None and _counts(draw) and not excused("rng:evaluation_shift", draw):
                    began = draw
                if began is not None:
                    states.evaluation[event.after] = began
            elif event.before in states.training:
                states.training.remove(event.before)
                states.training.add(event.after)
                states.evaluation.pop(event.before, None)
            else:
                began = states.evaluation.pop(event.before, None)
                if began is None or began.event.seed != event.seed:
                    states.training.add(event.after)
                elif event.phase in _TRAINING or event.microbatch is not None:
                    yield _shifted(began, draw)
                    return
                else:  # the draw may be for data of the training or of the next evaluation
                    states.evaluation[event.after] = began


@dataclass(slots=True)
class _States:
    """The states of the generators with one name, after the draws that were last made from them.

    Several generators have one name if the same line first draws from each. Therefore a draw is
    assigned to the generator whose last state it begins from. `training` has the states after draws
    of the training, and `evaluation` maps the state that an evaluation's draws leave to the first
    of these draws.
    """

    training: set[str] = field(default_factory=set)
    evaluation: dict[str, Draw] = field(default_factory=dict)


def _counts(draw: Draw) -> bool:
    """Whether an evaluation that makes this draw may shift a stream.

    If only the change of a state is known, the evaluation may not have made it; and another thread
    may fetch data of the training meanwhile.
    """
    event = draw.event
    known = bool(event.operator) and not event.thread
    return known and not is_loader_seed(draw) and not _is_dropout(draw)


def _is_dropout(draw: Draw) -> bool:
    return draw.event.operator in MASKS and draw.event.module is not None


def _is_default(generator: str) -> bool:
    """Whether this is the name of a default generator, and not of one that the program made."""
    return generator.startswith("torch ") or generator in (NUMPY, PYTHON)


def _stream(draw: Draw) -> tuple[str, str]:
    return draw.event.generator, draw.event.seed


def _shifted(began: Draw, draw: Draw) -> Finding:
    check = "rng:evaluation_shift"
    message = (
        f"rank {began.rank.rank} draws from the training's random stream while it evaluates, "
        f"before step {began.event.step}: {describe_draw(began)} draws from {stream_of(began)}; "
        f"the training continues in the same stream, with {describe_draw(draw)}; "
        f"{_why_evaluation(began)}"
    )
    restored = (
        "torch.random.fork_rng()"
        if began.event.generator.startswith("torch ")
        else "restore its state after the evaluation"
    )
    cause = (
        "the random numbers of the training depend on whether and how often it evaluates: use a "
        f"separate generator for the evaluation, or {restored}. {_excuse(check, began)}"
    )
    return violation(check, message, cause, began)


def _why_evaluation(draw: Draw) -> str:
    """Why the draw counts as one of an evaluation."""
    event = draw.event
    if event.module is not None and event.training:
        mode = "without gradients, or with a part of the model in evaluation mode"
    else:
        mode = "with the model in evaluation mode"
    return f"this counts as evaluation because it runs between two steps {mode}"


def _excuse(check: str, draw: Draw) -> str:
    where = draw.place or "*"
    return (
        "If the draw is intended, as in a rollout for the training, excuse it with "
        f'expect_rng("{where}", ignore="{check}", reason=...)'
    )


def is_loader_seed(draw: Draw) -> bool:
    """Whether a draw is the 64-bit seed that torch's loaders and samplers draw."""
    return draw.event.operator == "random_" and draw.event.shape == ()
