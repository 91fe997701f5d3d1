"""The meta variables of a call record its phase, its step and its context."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

from pytest_trainsafe import observe
from tests.support.learn.observing import Kept, Net, train


def test_calls_are_recorded_with_the_phase_of_the_training() -> None:
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with observe() as observation:
        F.relu(torch.ones(1))  # before the first step
        for _ in DataLoader(TensorDataset(torch.ones(1))):
            train(net, optimizer, 1)
        net.eval()
        with torch.no_grad():
            net(torch.ones(2, 3))
        net.train()
        x = torch.ones(2, 3, requires_grad=True)
        for reentrant in (False, True):
            checkpoint(net, x, use_reentrant=reentrant).sum().backward()
        net.load_state_dict(net.state_dict())
    kept = Kept.of(observation.table)
    phases = [str(call.meta["phase"]) for call in kept.called("torch.nn.functional.relu")]
    twice = ["forward", "recompute"] * 2
    assert phases == ["init", "forward", "evaluation", *twice]
    of = {call.api: call.meta["phase"] for call in kept.calls}
    assert of["torch.utils.data.DataLoader.__next__"] == "data"
    assert of["torch.Tensor.backward"] == "backward"
    assert of["torch.optim.SGD.step"] == "optimizer"
    assert of["torch.nn.Module.state_dict"] == "save"
    assert of["torch.nn.Module.load_state_dict"] == "load"


def test_calls_are_recorded_with_autocast_inference_and_training_mode() -> None:
    net = Net()
    with observe(["torch.nn.Linear"]) as observation:
        with torch.autocast("cpu", torch.bfloat16):
            net(torch.ones(2, 3))
        with torch.inference_mode():
            net.eval()(torch.ones(2, 3))
    first, second = Kept.of(observation.table).calls[::2]
    assert (first.meta["autocast"], first.meta["no_grad"]) == ("bfloat16", False)
    assert (second.meta["inference"], second.meta["training"]) == (True, False)
    result = first.values["result"].tensor
    assert result is not None
    assert result.dtype == "bfloat16"


def test_steps_end_where_the_program_sets_the_step_in_observation_meta() -> None:
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with observe() as observation:
        for step in range(3):
            observation.meta(step=step, epoch=step // 2, microbatch=0)
            train(net, optimizer, 2)  # two optimizer steps in one step
    kept = Kept.of(observation.table)
    assert kept.steps == [0, 1, 2]
    steps = kept.called("torch.optim.SGD.step")
    assert [call.meta["step"] for call in steps] == [0, 0, 1, 1, 2, 2]
    assert [call.meta["epoch"] for call in steps] == [0, 0, 0, 0, 1, 1]


def test_a_listener_receives_the_calls_and_changes_of_the_table_as_they_happen() -> None:
    live = Kept()
    net = Net()
    with observe(listeners=[live]) as observation:
        train(net, torch.optim.SGD(net.parameters(), lr=0.1), 1)
        assert live.steps == [0]
    kept = Kept.of(observation.table)
    assert live.apis() == kept.apis()
    assert [c.after for c in live.changes] == [c.after for c in kept.changes]


def test_an_error_in_a_listener_reaches_the_program_and_the_call_is_recorded() -> None:
    class Stops(Kept):
        def left(self, call: object) -> None:
            raise AssertionError("rule broken")

    net = Net()
    caught = ""
    with observe(["torch.optim.SGD.step"], listeners=[Stops()]) as observation:
        try:
            train(net, torch.optim.SGD(net.parameters(), lr=0.1), 1)
        except AssertionError as error:
            caught = str(error)
    assert caught == "rule broken"
    assert Kept.of(observation.table).apis() == ["torch.optim.SGD.step"]
