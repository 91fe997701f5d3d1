"""Observation does not change compiled graphs, and lists compiled modules as unseen."""

from __future__ import annotations

import torch

from pytest_trainsafe import observe
from tests.support.learn.observing import Kept, Net, train


def test_observation_keeps_compiled_graphs_and_lists_their_modules_as_unseen() -> None:
    def graphs() -> list[str]:
        torch._dynamo.reset()
        found: list[str] = []

        def keep(graph: torch.fx.GraphModule, inputs: object) -> object:
            found.append(graph.code)
            return graph.forward

        torch.manual_seed(0)
        net = Net()
        compiled = torch.compile(net, backend=keep)
        train(compiled, torch.optim.SGD(net.parameters(), lr=0.1), 2)  # type: ignore[arg-type]
        return found

    plain = graphs()
    with observe() as observation:
        observed = graphs()
    assert observed == plain
    assert len(plain) == 1
    [unseen] = observation.unseen
    assert "1 compiled region" in unseen
    assert "one, two" in unseen
    apis = Kept.of(observation.table).apis()
    assert "torch.nn.Linear.forward" not in apis
    assert "torch.Tensor.backward" in apis
