"""Checks that an evaluation draws nothing from the random streams of the training."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pytest_trainsafe.core.finding import Finding
from pytest_trainsafe.judge.replay.draws import Draw, Draws, describe_draw, stream_of
from pytest_trainsafe.judge.replay.finding import violation
from pytest_trainsafe.judge.replay.parallel import Excused
from pytest_trainsafe.trace.rng.events import MASKS, NUMPY, PYTHON

#: Phases of the training whose draws influence its results.
_TRAINING = frozenset({"forward", "backward", "optimizer"})


def evaluation_dropout(draws: Draws, excused: Excused) -> Iterator[Finding]:
    """Checks that no dropout is active during evaluation. Yields at most one finding."""
    check = "rng:evaluation_dropout"
    for rank in draws.by_rank:
        for draw in rank:
            event = draw.event
            if event.phase != "evaluation" or not _is_dropout(draw) or excused(check, draw):
                continue
            message = (
                f"rank {draw.rank.rank} evaluates its model with dropout on, before step "
                f"{event.step}: {describe_draw(draw)} draws from {stream_of(draw)}"
            )
            cause = (
                "the module is in training mode: call model.eval() before the evaluation, and "
                "model.train() after it"
                if event.training
                else "the module is in evaluation mode, but its dropout is active: pass "
                "training=self.training to the function"
            )
            yield violation(check, message, cause, draw)
            return


def evaluation_shift(draws: Draws, excused: Excused, seeds: set[str]) -> Iterator[Finding]:
    """Checks that an evaluation does not advance the training's random stream.

    Yields at most one finding. It is not a fault if the stream is restored or seeded again
    before the training draws from it. Nor is it a fault if a torch loader draws its seed, as
    every program does that evaluates with a loader; the lines of these draws are added to
    `seeds`. Draws of dropout are left to `evaluation_dropout`.
    """
    for rank in draws.by_rank:
        windows: dict[str, _Window] = {}
        for draw in rank:
            event = draw.event
            name = event.generator
            window = windows.get(name)
            if not name.startswith("torch ") and name not in (NUMPY, PYTHON):
                continue
            if event.phase == "evaluation":
                if is_loader_seed(draw):
                    seeds.add(event.line)
                elif (
                    window is None
                    and not _is_dropout(draw)
                    and not excused("rng:evaluation_shift", draw)
                ):
                    window = windows[name] = _Window(draw, event.after)
                if window is not None:
                    window.after = event.after
            elif window is None:
                continue
            elif event.before == window.first.event.before:
                del windows[name]  # the state was put back
            elif event.before != window.after:
                continue  # another stream, for which the state was exchanged
            elif event.phase in _TRAINING or event.microbatch is not None:
                yield _shifted(window.first, draw)
                return
            else:  # the draw may be for data of the training or of the next evaluation
                window.after = event.after


def _is_dropout(draw: Draw) -> bool:
    return draw.event.operator in MASKS and draw.event.module is not None


@dataclass(slots=True)
class _Window:
    """The draws of an evaluation: the first one, and the state of the stream after the last."""

    first: Draw
    after: str


def _shifted(began: Draw, draw: Draw) -> Finding:
    message = (
        f"rank {began.rank.rank} draws from the training's random stream while it evaluates, "
        f"before step {began.event.step}: {describe_draw(began)} draws from {stream_of(began)}; "
        f"the training continues in the same stream, with {describe_draw(draw)}"
    )
    cause = (
        "the random numbers of the training depend on whether and how often it evaluates: use a "
        "separate generator for the evaluation, or torch.random.fork_rng()"
    )
    return violation("rng:evaluation_shift", message, cause, began)


def is_loader_seed(draw: Draw) -> bool:
    """Whether a draw is the 64-bit seed that torch's loaders and samplers draw."""
    return draw.event.operator == "random_" and draw.event.shape == ()
