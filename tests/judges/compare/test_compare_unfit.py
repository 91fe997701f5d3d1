"""The sentence on a tensor whose parts no layout explains is true of their shapes."""

from __future__ import annotations

import torch

from pytest_trainsafe.align.merge import Part
from pytest_trainsafe.core.layout import Layout, Shard
from pytest_trainsafe.core.point import Point
from pytest_trainsafe.judges.compare.declarations.infer import Inferred, Sample, infer_all
from pytest_trainsafe.judges.compare.declarations.unfit import unfit

POINT = Point.of(tp=2)
WHOLE = torch.arange(40, dtype=torch.float64).reshape(1, 5, 8)


def sample(whole: torch.Tensor, parts: list[torch.Tensor], known: Layout = ()) -> Sample:
    held = [Part(rank, POINT.coordinates(rank), part, known) for rank, part in enumerate(parts)]
    return Sample(held, whole, lambda value: float((value - whole).norm()))


def text(inferred: Inferred, parts: list[torch.Tensor], known: Layout = ()) -> str:
    return unfit(inferred, WHOLE.shape, sample(WHOLE, parts, known).parts)


def test_layouts_that_differ_between_micro_batches_are_not_called_impossible_cuts() -> None:
    """One micro-batch is replicated, and one consists of partial sums of the same shape."""
    terms = [WHOLE * 0.25 + torch.eye(5, 8), WHOLE * 0.75 - torch.eye(5, 8)]
    samples = [sample(WHOLE, [WHOLE, WHOLE]), sample(WHOLE, terms)]
    inferred = infer_all(samples, POINT.sizes)

    found = text(inferred, [WHOLE, WHOLE])

    assert inferred.explained == []
    assert "cuts a tensor" not in found
    assert "no layout explains it in all steps and micro-batches" in found


def test_a_known_layout_that_gives_other_shapes_is_named() -> None:
    known = (Shard(2, "tp"),)
    inferred = infer_all([sample(WHOLE, [WHOLE, WHOLE], known)], POINT.sizes)

    assert "no layout with the known part of its layout (dimension 2 cut over tp) cuts" in (
        text(inferred, [WHOLE, WHOLE], known)
    )


def test_parts_of_an_impossible_shape_are_named_with_it() -> None:
    parts = [torch.zeros(1, 5, 3), torch.zeros(1, 5, 3)]
    inferred = infer_all([sample(WHOLE, parts)], POINT.sizes)

    assert text(inferred, parts) == (
        "no layout cuts a tensor of shape [1, 5, 8] into parts of shape [1, 5, 3]"
    )
