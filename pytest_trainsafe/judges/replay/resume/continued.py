"""Compares a resumed Run with the uninterrupted one, bit by bit, from its first step on."""

from __future__ import annotations

import itertools
from dataclasses import replace

from pytest_trainsafe.judges.replay.determinism.divergence import Divergence, first_divergence
from pytest_trainsafe.trace.reader import RankTrace, Trace


def first_difference(whole: Trace, resumed: Trace, step: int) -> Divergence | None:
    """The first difference between two Runs from `step` on, in dataflow order, or None."""
    return first_divergence(_since(whole, step), _since(resumed, step))


def _since(trace: Trace, step: int) -> Trace:
    """The trace without the tensors, inputs and steps before a step."""
    return replace(trace, ranks=[_rank_since(rank, step) for rank in trace.ranks], _holders={})


def _rank_since(rank: RankTrace, step: int) -> RankTrace:
    return replace(
        rank,
        tensors={id: event for id, event in rank.tensors.items() if id.step >= step},
        inputs=[event for event in rank.inputs if event.step >= step],
        steps=[event for event in rank.steps if event.step >= step],
    )


def step_numbers(trace: Trace) -> list[int]:
    """The numbers of the steps, in order, of the rank that took the fewest steps."""
    return min(([step.step for step in rank.steps] for rank in trace.ranks), key=len)


def describe_difference(found: Divergence) -> str:
    """A text that says where two Runs first differ, by how much, and how much else differs."""
    on = f"on rank {found.rank}"
    if found.how == "inputs":
        return f"the model's inputs · step {found.step}, {on}"
    if found.where is None:
        return f"whether the optimizer steps · step {found.step}, {on}"
    by = "" if found.greatest is None else f", by up to {found.greatest:.1e}"
    others = found.differing - 1
    rest = f"; {others} of {found.total - 1} other tensors differ too" if others > 0 else ""
    return f"{found.where}, {on}{by}{rest}"


def inputs_by_call(rank: RankTrace) -> dict[tuple[int, int, int], tuple[str, ...]]:
    """The hashes of the inputs of each call of the model.

    The keys are the step, the micro-batch, and the number of the call (from 0) within it.
    """
    found: dict[tuple[int, int, int], tuple[str, ...]] = {}
    for event in rank.inputs:
        for call in itertools.count():
            key = event.step, event.microbatch, call
            if key not in found:
                found[key] = event.hashes
                break
    return found
