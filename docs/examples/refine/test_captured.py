"""The same proof without files of graphs: they are captured from the program."""

import torch
import torch.distributed as dist
from torch.nn.functional import gelu

from pytest_trainsafe import assert_refines
from pytest_trainsafe.judges.refine.graphs.modules import capture

RELATION = {"mesh": {"tp": 2}, "inputs": {"x": "replica", "up": "concat 1", "down": "concat 0"}}


def mlp(tensors):
    y = gelu(tensors["x"] @ tensors["up"]) @ tensors["down"]
    if dist.get_world_size() > 1:
        dist.all_reduce(y)
    return tensors["x"] + y


def graph(rank, ranks):
    hidden = 8 // ranks
    sizes = {"x": (4, 6), "up": (6, hidden), "down": (hidden, 6)}
    tensors = {name: torch.zeros(size) for name, size in sizes.items()}
    return capture(mlp, tensors, rank=rank, ranks=ranks)


def test_the_captured_mlp_of_two_ranks_refines_the_sequential_one():
    ranks = [graph(rank, 2) for rank in range(2)]
    assert_refines(graph(0, 1), ranks, RELATION)
