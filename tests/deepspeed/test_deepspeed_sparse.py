"""Sparse gradients, of `nn.Embedding(sparse=True)`, are compared and clipped like dense ones."""

from __future__ import annotations

import deepspeed_programs
import pytest
import torch
from torch import nn

from pytest_trainsafe import assert_trainsafe
from pytest_trainsafe.assertions import TrainsafeFailure
from pytest_trainsafe.fixtures.deepspeed.reference import Recipe


@pytest.mark.parametrize("clip", [0.0, 0.01])
def test_the_reference_trains_on_sparse_gradients_as_on_dense_ones(clip: float) -> None:
    words = torch.tensor([1, 3, 3])
    trained = []
    for sparse in (False, True):
        torch.manual_seed(0)
        embedding = nn.Embedding(6, 4, sparse=sparse)
        recipe = Recipe(
            [embedding.weight], torch.optim.SGD(embedding.parameters(), lr=1.0), clip, False
        )
        for _ in range(2):  # two micro-batches
            embedding(words).square().sum().backward()
        recipe.step()
        trained.append((embedding.weight.detach(), recipe.norm))

    torch.testing.assert_close(trained[1], trained[0])


@pytest.mark.trainsafe(deepspeed_programs.sparse_embedding, zero=0)
def test_a_sparse_gradient_that_is_not_clipped_is_found_in_its_update(
    candidate_trace, reference_trace
):
    pytest.importorskip("deepspeed")
    with pytest.raises(TrainsafeFailure, match=r"words\.weight · update · step 0"):
        assert_trainsafe(candidate_trace, reference_trace)
