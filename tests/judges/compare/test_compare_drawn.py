"""A failure is explained by the random numbers that ranks drew, and only if these explain it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import msgspec
import pytest
import torch

from pytest_trainsafe.core.finding import Pattern
from pytest_trainsafe.core.point import Point
from pytest_trainsafe.judges.compare.compare import compare
from pytest_trainsafe.judges.compare.explain.drawn import drawn
from pytest_trainsafe.judges.compare.guards.leading import led_by_setup
from pytest_trainsafe.judges.compare.judgement import lead_of
from pytest_trainsafe.trace.rng.events import DrawEvent, Phase
from tests.support.compare.traces import (
    INNER,
    PARAMETERS,
    TOKENS,
    Bench,
    Edit,
    Record,
    draw,
    only,
    training,
)

At = dict[str, int]


def other(record: Record, at: At, part: torch.Tensor) -> torch.Tensor:
    """Other values than the reference's on the second rank."""
    second = at["tp"] or at["dp"]
    return draw(f"other {record.id}", tuple(part.shape)).to(part.dtype) if second else part


def same_part(record: Record, at: At, part: torch.Tensor) -> torch.Tensor:
    """The part of the first tp rank on both."""
    return record.tensor.chunk(2, dim=0)[0].to(part.dtype).clone()


def twice(record: Record, at: At, part: torch.Tensor) -> torch.Tensor:
    return part * 2


def drew(seed: int, module: str = "", microbatch: int = 0) -> DrawEvent:
    """A draw from a seed: a mask in a module, or numbers of the initialisation."""
    phase: Phase = "forward" if module else "initialisation"
    return DrawEvent(
        *("torch cpu", phase, f"{seed:016x}.0", f"{seed:016x}.9"),
        "bernoulli_.float" if module else "normal_",
        microbatch=microbatch if module else None,
        module=module or None,
        at="/me/model.py:7",
        shape=(TOKENS, INNER // 2),
        seed=str(seed),
    )


def explained(
    bench: Bench,
    point: Point,
    edit: Edit,
    draws: Callable[[At], list[DrawEvent]] | None,
    records: Sequence[Record] | None = None,
) -> Pattern | None:
    """The pattern of the first finding, if each rank drew `draws`."""
    rung = bench.rung(point, edit, "float64", records)
    if draws is not None:
        ranks = [
            dataclasses.replace(rank, facts={**rank.facts, DrawEvent: [*draws(rank.coordinates)]})
            for rank in rung.candidate.ranks
        ]
        rung = dataclasses.replace(rung, candidate=rung.candidate.with_ranks(ranks))
    comparison = led_by_setup(rung, compare(rung))
    return lead_of([f for f in comparison.findings if f.verdict == "fail"]).pattern


MASKED = only("activation", "fc1.output", other, step=0)
DATA = only("activation", "fc2.output", other, step=0)


def test_one_stream_for_different_parts_of_a_tensor_is_named_with_one_leading_advice(
    bench: Bench,
) -> None:
    found = explained(bench, Point.of(tp=2), MASKED, lambda at: [drew(5, "fc1")])

    assert found is not None
    assert (found.name, found.axis) == ("same draws", "tp")
    assert "ranks 0 and 1 of tp drew the same numbers for different parts" in found.text
    assert "torch cpu, seed 5" in found.text
    first, _, second = found.cause.partition(". For a test that only judges the draws")
    assert first.startswith("use pytest_trainsafe.per_example_dropout, with one seed on all ranks")
    assert "the positions of the rank's part" in first
    assert "seed a second generator from the rank on tp" in second


def test_one_stream_for_the_data_of_different_ranks_is_named(bench: Bench) -> None:
    found = explained(bench, Point.of(dp=2), DATA, lambda at: [drew(5, "fc2", 2 * at["dp"])])

    assert found is not None
    assert (found.name, found.axis) == ("same draws", "dp")
    assert "for different data" in found.text
    assert found.cause.startswith("use pytest_trainsafe.per_example_dropout")
    assert "add the rank on dp to the seed" in found.cause.partition(". For a test")[2]


@pytest.mark.parametrize(
    ("point", "edit", "module"),
    [(Point.of(tp=2), MASKED, "fc1"), (Point.of(dp=2), DATA, "fc2")],
    ids=["tp", "dp"],
)
def test_streams_of_the_ranks_own_are_not_advised_to_be_seeded_by_the_rank(
    bench: Bench, point: Point, edit: Edit, module: str
) -> None:
    def draws(at: At) -> list[DrawEvent]:
        return [drew(5 + at["tp"] + at["dp"], module, 2 * at["dp"])]

    found = explained(bench, point, edit, draws)

    assert found is not None
    assert found.name == "own draws"
    assert "rank 0 from torch cpu, seed 5, and rank 1 from torch cpu, seed 6" in found.text
    assert found.cause.startswith("use pytest_trainsafe.per_example_dropout")
    assert "to the seed" not in found.cause
    assert "second generator" not in found.cause


def test_different_masks_for_copies_of_a_tensor_are_led_by_the_seeds(bench: Bench) -> None:
    found = explained(bench, Point.of(tp=2), DATA, lambda at: [drew(5 + at["tp"], "fc2")])

    assert found is not None
    assert (found.name, found.axis) == ("masks of copies", "tp")
    assert "rank 0 from torch cpu, seed 5, and rank 1 from torch cpu, seed 6" in found.text
    assert "one random state on all ranks of tp" in found.cause
    assert "per_example_dropout" not in found.cause


@pytest.mark.parametrize(("apart", "name"), [(0, "same draws"), (1, "own draws")])
def test_parts_that_no_annotation_declares_are_not_called_copies(
    bench: Bench, apart: int, name: str
) -> None:
    records = training("float64")
    where = [n for n, each in enumerate(records) if str(each.id.path) == "fc1.output"]
    for number in where:
        records[number] = dataclasses.replace(records[number], layout=())

    def mine(record: Record, at: At, part: torch.Tensor) -> torch.Tensor:
        seed = f"mask {apart * at['tp']}"
        return part.chunk(2, dim=1)[at["tp"]] * draw(seed, (TOKENS, INNER // 2)).sign()

    edit = only("activation", "fc1.output", mine)
    draws = lambda at: [drew(5 + apart * at["tp"], "fc1")]  # noqa: E731
    found = explained(bench, Point.of(tp=2), edit, draws, records)

    assert found is not None
    assert (found.name, found.axis) == (name, "tp")
    assert found.cause.startswith(
        "each rank of tp holds a part of it, which no annotation says: add "
        '"fc1": {output: {tp_dim: 1}} to the modules in the annotations. Then use '
        "pytest_trainsafe.per_example_dropout"
    )
    assert "copies" not in found.text


def test_one_mask_for_copies_of_a_tensor_explains_nothing(bench: Bench) -> None:
    found = explained(bench, Point.of(tp=2), DATA, lambda at: [drew(5, "fc2")])

    assert found is None or found.name not in ("masks of copies", "same draws", "own draws")


@pytest.mark.parametrize("kind", ["activation", "activation_grad"])
def test_another_mask_in_gradients_alone_is_said_to_be_drawn_in_the_backward(
    bench: Bench, kind: str
) -> None:
    rung = bench.rung(Point.of(tp=2), only(kind, "fc2.output", other, step=0), "float64")
    comparison = compare(rung)
    lead = lead_of([f for f in comparison.findings if f.verdict == "fail"])
    looks = Pattern("other mask", "41 values are zero", cause="of a single device")
    found = drawn(rung, comparison, msgspec.structs.replace(lead, pattern=looks))

    assert (found is not None) == (kind == "activation_grad")
    if found is not None:
        assert (found.name, found.text) == (looks.name, looks.text)
        assert "the backward masks other elements than the forward did" in found.cause


@pytest.mark.parametrize("module", ["", "norm"])
def test_draws_elsewhere_do_not_explain_a_wrong_output(bench: Bench, module: str) -> None:
    draws = None if not module else lambda at: [drew(5, module)]
    found = explained(bench, Point.of(tp=2), MASKED, draws)

    assert found is None or found.name not in ("same draws", "own draws")


def test_a_factor_is_reported_although_ranks_drew_the_same_numbers(bench: Bench) -> None:
    edit = only("activation", "fc1.output", twice, step=0)
    found = explained(bench, Point.of(tp=2), edit, lambda at: [drew(5, "fc1")])

    assert found is not None
    assert found.name == "scaled"


COPY = only("param", "norm.weight", other)
PART = only("param", "fc1.weight", same_part)


def test_copies_that_were_drawn_from_other_seeds_are_led_by_the_seeds(bench: Bench) -> None:
    found = explained(bench, Point.of(tp=2), COPY, lambda at: [drew(5 + at["tp"])])

    assert found is not None
    assert (found.name, found.axis) == ("seeded apart", "tp")
    assert "different copies of norm.weight" in found.text
    assert "rank 0 draws from torch cpu, seed 5, and rank 1 from torch cpu, seed 6" in found.text
    assert "seed them alike" in found.cause


def test_copies_that_were_drawn_alike_are_not_explained_by_seeds(bench: Bench) -> None:
    found = explained(bench, Point.of(tp=2), COPY, lambda at: [drew(5)])

    assert found is None or not found.name.startswith("seeded")


def test_parts_that_were_drawn_alike_are_said_to_be_the_same_numbers(bench: Bench) -> None:
    assert PARAMETERS["fc1.weight"][1]
    found = explained(bench, Point.of(tp=2), PART, lambda at: [drew(5)])

    assert found is not None
    assert (found.name, found.axis) == ("seeded alike", "tp")
    assert "ranks 0 and 1 of tp hold the same values of fc1.weight" in found.text
    assert "drew the same numbers for their parts" in found.cause


def test_parts_of_a_whole_that_each_rank_draws_are_said_to_be_the_same_part(bench: Bench) -> None:
    """Other seeds would give the ranks parts of different tensors."""
    shape = PARAMETERS["fc1.weight"][0]
    whole = msgspec.structs.replace(drew(5), shape=shape)
    found = explained(bench, Point.of(tp=2), PART, lambda at: [whole])

    assert found is not None
    assert (found.name, found.axis) == ("another shard", "tp")


def test_parts_that_equal_each_other_without_draws_are_said_to_be_the_same_part(
    bench: Bench,
) -> None:
    found = explained(bench, Point.of(tp=2), PART, lambda at: [])

    assert found is not None
    assert (found.name, found.axis) == ("another shard", "tp")
    assert found.text.startswith("ranks 0 and 1 of tp hold the same values: rank 1 holds the part")
    assert "an offset that does not depend on the rank" in found.cause
