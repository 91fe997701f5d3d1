"""What has weights and is not watched is named; another module of a watched class as such."""

from __future__ import annotations

import copy

import numpy as np
import torch
from torch import nn

from pytest_trainsafe.record.model.unwatched import Beside, unwatched
from pytest_trainsafe.trace.run_spec import RunSpec

SPEC = RunSpec(program="a:b", dtype="float64")


class Net(nn.Linear):
    """A model."""


class Critic(nn.Linear):
    """Another model."""


def test_a_replica_of_the_watched_model_is_called_another_module() -> None:
    older = Critic(3, 2)
    Beside(SPEC, None)  # type: ignore[arg-type]
    net = Net(3, 2)
    kept = [copy.deepcopy(net), Critic(3, 2)]
    found = [*unwatched([net], dict(net.named_parameters()))]
    assert older.bias is not None
    assert len(kept) == len(found) == 2
    assert sorted(text.partition("; ")[0] for text in found) == [
        "the 2 weights of another module Net, which ctx.watch was not given",
        "the 2 weights of the module Critic, which ctx.watch was not given",
    ]


def test_weights_that_a_list_has_beside_what_is_no_tensor_are_those_with_values() -> None:
    net = nn.Sequential(Net(3, 2))
    beside = Beside(SPEC, None)  # type: ignore[arg-type]
    beside.watch([("", net)], dict(net.named_parameters()))
    kept = [torch.zeros(2, 3), np.zeros(2)], {"0.weight": torch.zeros(2, 3), "0.bias": "none"}

    found = dict(beside.weights())

    assert len(kept) == len(found) == 2
    assert {name: [tuple(w.shape) for w in weights] for name, weights in found.items()} == {
        "a list with the shapes of the weights": [(2, 3)],
        "a dict with the names of the weights": [(2, 3)],
    }


def test_the_other_stages_of_a_cut_model_are_not_named() -> None:
    Beside(SPEC, None)  # type: ignore[arg-type]
    model = nn.Sequential(Net(3, 2), Critic(2, 2))
    stage = model[0]
    weights = dict(stage.named_parameters())
    kept = copy.deepcopy(stage)
    (found,) = unwatched([stage], weights, cut=True)
    assert found.startswith("the 2 weights of another module Net, which ctx.watch was not given")
    assert len([*unwatched([stage], weights)]) == 2
    assert kept.bias is not None
