"""What has weights and is not watched is named; another module of a watched class as such."""

from __future__ import annotations

import copy
import gc

from torch import nn

from pytest_trainsafe.record.model.unwatched import unwatched


class Net(nn.Linear):
    """A model."""


class Critic(nn.Linear):
    """Another model."""


def test_a_replica_of_the_watched_model_is_called_another_module() -> None:
    known = {id(each) for each in _modules()}
    net = Net(3, 2)
    kept = [copy.deepcopy(net), Critic(3, 2)]
    found = [*unwatched([net], dict(net.named_parameters()), known)]
    assert len(kept) == len(found) == 2
    assert sorted(text.partition("; ")[0] for text in found) == [
        "the 2 weights of another module Net, which ctx.watch was not given",
        "the 2 weights of the module Critic, which ctx.watch was not given",
    ]


def _modules() -> list[nn.Module]:
    return [each for each in gc.get_objects() if issubclass(type(each), nn.Module)]
