"""An exchange of sizes that a tensor says is a functional operator in a graph, and only then."""

import torch
import torch.distributed as dist
from torch.fx.experimental.proxy_tensor import make_fx

from pytest_trainsafe.compat.distributed.uneven_exchange import FUNCTIONAL, uneven_exchanges
from pytest_trainsafe.compat.fake_group import fake_group


def operators(program, *arguments):
    with fake_group(0, 2), uneven_exchanges():
        module = make_fx(program, tracing_mode="fake", _allow_non_fake_inputs=True)(*arguments)
    return {str(node.target) for node in module.graph.nodes}


def test_sizes_that_a_tensor_says_are_sent_by_the_functional_operator():
    def program(x, rows):
        sizes = rows.tolist()
        came = torch.empty_like(x)
        assert dist.all_to_all_single(came, x, sizes, sizes, async_op=True).wait()
        return came

    found = operators(program, torch.ones(4, 2), torch.tensor([1, 3]))
    assert "_c10d_functional.all_to_all_single.default" in found
    assert "c10d.alltoall_base_.default" not in found
    assert FUNCTIONAL.available


def test_integers_are_sent_as_before():
    def program(x):
        came = torch.empty_like(x)
        dist.all_to_all_single(came, x, [1, 3], [1, 3])
        return came

    found = operators(program, torch.ones(4, 2))
    assert "c10d.alltoall_base_.default" in found
    assert "_c10d_functional.all_to_all_single.default" not in found
