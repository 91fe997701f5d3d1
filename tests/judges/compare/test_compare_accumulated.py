"""A gradient that ranks add up in bfloat16 is narrowed, although its sum over ranks is float32."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch

from pytest_trainsafe.core.layout import Flat
from pytest_trainsafe.core.point import Point
from pytest_trainsafe.judges.compare.compare import compare
from pytest_trainsafe.judges.compare.rung import RungTraces
from pytest_trainsafe.trace.facts import Reduction
from pytest_trainsafe.trace.reader import Trace
from pytest_trainsafe.trace.run_spec import RunSpec
from pytest_trainsafe.trace.schema import NoteEvent, StepEvent
from pytest_trainsafe.trace.writer import RankWriter, manifest_of, write_manifest
from tests.support.compare.traces import draw, parameter

MICROBATCHES = 6

SCATTER = Reduction(
    "reduce_scatter_tensor(SUM)", ("dp",), "/me/zero.py:9", "", 64, "gradients", True
)

Add = Callable[[Sequence[torch.Tensor]], torch.Tensor]


def in_float32(terms: Sequence[torch.Tensor]) -> torch.Tensor:
    return torch.stack(list(terms)).float().sum(dim=0)


def in_bfloat16(terms: Sequence[torch.Tensor]) -> torch.Tensor:
    total = torch.zeros_like(terms[0])
    for term in terms:
        total += term
    return total.float()


def rounded_after(terms: Sequence[torch.Tensor]) -> torch.Tensor:
    """A sum in float32 that is rounded once, as a reduction in bfloat16 does."""
    return in_float32(terms).bfloat16().float()


def trained(
    path: Path,
    dp: int,
    add: Add,
    noise: float = 0.0,
    clip: float = 1.0,
    note: str = "",
    dtype: str = "bfloat16",
) -> Trace:
    """A trace of one step: each rank adds up its micro-batches, and float32 sums over dp."""
    point = Point.of(dp=dp)
    spec = RunSpec(program="p.train", axes=point.values, mesh=point.mesh.declared, dtype=dtype)
    write_manifest(path, manifest_of(spec, "cpu"))
    terms = [draw(f"term {i}", (8, 8)).bfloat16() for i in range(MICROBATCHES)]
    terms = [term * (1 + noise * draw("noise", (8, 8))).bfloat16() for term in terms]
    share = MICROBATCHES // dp
    mine = [terms[rank * share : (rank + 1) * share] for rank in range(dp)]
    main = clip * torch.stack([add(each) for each in mine]).sum(dim=0)
    for rank in range(dp):
        writer = RankWriter(path, rank)
        if note:
            writer.add(NoteEvent("reduces_in", note))
        for index, term in enumerate(mine[rank], rank * share):
            writer.add_tensor(parameter("param_grad", "fc.weight", 0, index), term)
        writer.add_tensor(parameter("main_grad", "fc.weight", 0), main)
        writer.add(StepEvent(0, share, "", "", True, 0.0))
        writer.close()
    return Trace.open(path)


def doubts(folder: Path, candidate: Trace, add: Add = in_float32, clip: float = 1.0) -> list[str]:
    """The messages of `narrowed`; the reference adds up on one device."""
    reference = trained(folder / "reference", 1, add, clip=clip)
    perturbed = trained(folder / "perturbed", 1, add, 2**-8, clip)
    found = compare(RungTraces("bfloat16", candidate, reference, perturbed)).findings
    assert {finding.check for finding in found} <= {"narrowed"}, found
    return [finding.message for finding in found]


@pytest.mark.parametrize("clip", [1.0, 0.37])
@pytest.mark.parametrize("dp", [1, 2])
def test_ranks_that_add_up_in_bfloat16_and_reduce_in_float32_are_narrowed(
    tmp_path: Path, dp: int, clip: float
) -> None:
    [message] = doubts(tmp_path, trained(tmp_path / "c", dp, in_bfloat16, clip=clip), clip=clip)
    assert "accumulated" in message
    if (dp, clip) != (1, 1.0):  # there, every value fits bfloat16
        assert message.startswith("the values are those of a sum that each rank rounds to bfloat16")


def test_a_program_that_casts_to_bfloat16_itself_is_judged_alike_in_a_wider_rung(
    tmp_path: Path,
) -> None:
    candidate = trained(tmp_path / "c", 2, in_bfloat16, dtype="float32")
    assert len(doubts(tmp_path, candidate)) == 1


@pytest.mark.parametrize("dp", [1, 2, 3, 6])
def test_ranks_that_add_up_in_float32_pass(tmp_path: Path, dp: int) -> None:
    assert doubts(tmp_path, trained(tmp_path / "c", dp, in_float32, clip=0.37), clip=0.37) == []


def test_ranks_with_one_micro_batch_each_add_up_nothing(tmp_path: Path) -> None:
    assert doubts(tmp_path, trained(tmp_path / "c", 6, in_bfloat16)) == []


def test_ranks_may_add_up_in_bfloat16_as_the_reference_does(tmp_path: Path) -> None:
    assert doubts(tmp_path, trained(tmp_path / "c", 1, in_bfloat16), in_bfloat16) == []


def test_a_framework_may_be_configured_to_reduce_in_bfloat16(tmp_path: Path) -> None:
    candidate = trained(tmp_path / "c", 2, in_bfloat16, note="bfloat16")
    assert doubts(tmp_path, candidate) == []


def test_a_sum_that_is_rounded_in_another_way_is_not_taken_for_one_of_rounded_sums(
    tmp_path: Path,
) -> None:
    assert doubts(tmp_path, trained(tmp_path / "c", 2, rounded_after, clip=0.37), clip=0.37) == []


@pytest.mark.parametrize(("step", "found"), [(0, ["narrowed"]), (-1, [])])
def test_a_master_copy_that_is_rounded_after_a_step_is_narrowed(
    tmp_path: Path, step: int, found: list[str]
) -> None:
    """Before the first step, every master copy is a converted parameter."""

    def masters(path: Path, narrow: bool, noise: float = 0.0) -> Trace:
        write_manifest(path, manifest_of(RunSpec(program="p.train", dtype="bfloat16"), "cpu"))
        writer = RankWriter(path, 0)
        first = draw("weight", (8, 8)).bfloat16().float()
        writer.add_tensor(parameter("master_param", "fc.weight", -1), first)
        after = first - 0.25 * (1 + noise * draw("noise", (8, 8))).float() * draw("u", (8, 8))
        after = after.bfloat16().float() if narrow and step == 0 else after.float()
        writer.add_tensor(parameter("master_param", "fc.weight", 0), after)
        writer.add(StepEvent(0, 1, "", "", True, 0.0))
        writer.close()
        return Trace.open(path)

    rung = RungTraces(
        "bfloat16",
        masters(tmp_path / "c", narrow=True),
        masters(tmp_path / "r", narrow=False),
        masters(tmp_path / "p", narrow=False, noise=2**-6),
    )
    assert [each.check for each in compare(rung).findings] == found


def in_ranges(trace: Trace, add: Add) -> Trace:
    """The trace, in which each of two ranks holds one half of its own sum before the step."""
    folder = trace.path / "ranges"
    spec = RunSpec(program="p.train", axes=Point.of(dp=2).values, dtype="bfloat16")
    write_manifest(folder, manifest_of(spec, "cpu"))
    for rank in trace.ranks:
        given = (e for id, e in rank.tensors.items() if id.kind == "param_grad")
        terms = [trace.load(rank.rank, event) for event in given]
        writer = RankWriter(folder, rank.rank)
        writer.add(SCATTER)
        for index, term in enumerate(terms, 3 * rank.rank):
            writer.add_tensor(parameter("param_grad", "fc.weight", 0, index), term)
        half = slice(32 * rank.rank, 32 * rank.rank + 32)
        own = add(terms).reshape(-1)[half]
        flat = (Flat(32 * rank.rank, 32, (8, 8), ("dp",)),)
        writer.add_tensor(parameter("main_grad", "fc.weight", 0), own, flat)
        writer.add(StepEvent(0, 3, "", "", True, 0.0))
        writer.close()
    return Trace.open(folder)


@pytest.mark.parametrize(
    ("add", "reference", "found"),
    [
        (in_bfloat16, in_float32, 1),
        (in_bfloat16, in_bfloat16, 0),
        (in_float32, in_float32, 0),
    ],
)
def test_ranges_that_an_optimizers_step_reduces_are_judged_by_what_each_rank_adds_up(
    tmp_path: Path, add: Add, reference: Add, found: int
) -> None:
    candidate = in_ranges(trained(tmp_path / "c", 2, add), add)
    assert len(doubts(tmp_path, candidate, reference)) == found
