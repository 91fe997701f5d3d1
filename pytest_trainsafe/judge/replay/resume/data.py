"""Finds the batches that the resumed Run reads instead of those of the uninterrupted one."""

from __future__ import annotations

from pytest_trainsafe.core.finding import StepSubject
from pytest_trainsafe.judge.replay.resume.continued import inputs_by_call
from pytest_trainsafe.judge.replay.resume.difference import Difference
from pytest_trainsafe.trace.reader import Trace
from pytest_trainsafe.trace.rng.events import WorkerDraw

_POSITION = (
    "save how many batches of the epoch were read, as state_dict() of a StatefulDataLoader does, "
    "and begin the resumed training after them"
)
_ORDER = (
    "the resumed training shuffles or divides its examples differently: resume the sampler's epoch "
    "(set_epoch) and its generator, and read with the same batch size"
)
_WORKERS = (
    "; the workers of its loader begin with fresh random streams, so random augmentation differs: "
    "draw it from a generator per example (PerExampleDataset)"
)


def data_difference(whole: Trace, resumed: Trace) -> Difference | None:
    """The first input of the model that differs in the resumed Run; None if all are equal.

    In its evidence, "known" is whether the uninterrupted Run reads that input anywhere.
    """
    for one, other in zip(whole.ranks, resumed.ranks, strict=True):
        wanted, found = inputs_by_call(one), inputs_by_call(other)
        for key, hashes in found.items():
            if wanted.get(key, hashes) == hashes:
                continue
            step, microbatch, _ = key
            begin = f"step {step}, micro-batch {microbatch} of rank {one.rank}"
            place = _read_at(whole, one.rank, hashes)
            if place is None:
                text = f"{begin} reads a batch that the uninterrupted training never reads"
                cause = _ORDER
                if other.events_of(WorkerDraw):
                    cause += _WORKERS
            else:
                rank, at, number = place
                whose = "" if rank == one.rank else f" of rank {rank}"
                text = (
                    f"{begin} reads the batch that the uninterrupted training reads in step {at}, "
                    f"micro-batch {number}{whose}"
                )
                cause = _POSITION if at < step and rank == one.rank else _ORDER
            return Difference(
                "data_order",
                f"the data order is not resumed: {text}",
                cause,
                one.rank,
                subject=StepSubject(step),
                evidence=(("step", step), ("known", place is not None)),
            )
    return None


def _read_at(whole: Trace, rank: int, hashes: tuple[str, ...]) -> tuple[int, int, int] | None:
    """The rank, step and micro-batch at which `whole` reads inputs with these hashes, or None.

    Prefers `rank` to other ranks.
    """
    ranks = sorted(whole.ranks, key=lambda each: each.rank != rank)
    for each in ranks:
        for event in each.inputs:
            if event.hashes == hashes:
                return each.rank, event.step, event.microbatch
    return None
