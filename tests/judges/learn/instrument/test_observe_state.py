"""Every change of parameters, gradients and other state is recorded with the call that made it."""

from __future__ import annotations

import functools
import gc
import weakref
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from pytest_trainsafe import observe
from tests.support.learn.observing import Kept, Net, train


def _by(kept: Kept, name: str, attribute: str) -> list[str | None]:
    return [
        None if change.by is None else change.by.api for change in kept.of_object(name, attribute)
    ]


def test_changes_of_gradients_parameters_and_states_are_attributed_to_calls() -> None:
    net = Net()
    optimizer = torch.optim.Adam(net.parameters())
    with observe() as observation:
        train(net, optimizer, 2)
    kept = Kept.of(observation.table)
    backward, clear = "torch.autograd.backward", "torch.optim.Adam.zero_grad"
    step = "torch.optim.Adam.step"
    assert _by(kept, "model.one.weight", "grad") == [backward, clear, backward]
    assert _by(kept, "model.one.weight", "data") == [step, step]
    assert _by(kept, "optimizer.state.one.weight", "exp_avg") == [step, step]
    counts = kept.of_object("optimizer.state.one.weight", "step")
    assert [change.after.plain for change in counts] == [1.0, 2.0]


def test_every_attribute_is_sampled_once_at_the_end_of_each_step() -> None:
    net = Net()
    with observe() as observation:
        train(net, torch.optim.SGD(net.parameters(), lr=0.1), 2)
    kept = Kept.of(observation.table)
    sampled = [(c.object, c.attribute) for c in kept.samples if c.meta["step"] == 1]
    assert len(sampled) == len(set(sampled))
    assert {name for _, name in sampled} >= {"data", "grad", "requires_grad", "in_optimizer", "lr"}
    last = next(c for c in reversed(kept.samples) if c.object == "model.two.bias")
    assert last.before is None
    facts = [c.after.tensor for c in kept.samples if c.attribute == "data"][-1]
    assert facts is not None
    assert facts.norm == torch.linalg.vector_norm(net.two.bias.detach()).item()


def test_writes_through_data_and_by_the_program_are_recorded() -> None:
    net = Net()
    with observe() as observation:
        train(net, torch.optim.SGD(net.parameters(), lr=0.1), 1)
        net.one.bias.data.add_(1)  # does not change the tensor's version
        with torch.no_grad():
            net.two.bias.add_(1)
        train(net, torch.optim.SGD(net.parameters(), lr=0.0), 1)
        observation.meta(step=5)
    kept = Kept.of(observation.table)
    assert None in _by(kept, "model.two.bias", "data")
    assert len(_by(kept, "model.one.bias", "data")) == 2


def test_steps_with_learning_rate_zero_record_no_parameter_change() -> None:
    net = Net()
    with observe() as observation:
        train(net, torch.optim.SGD(net.parameters(), lr=0.0), 2)
    assert not Kept.of(observation.table).of_object("model.one.weight", "data")


def test_changes_of_buffers_are_attributed_to_the_forward_of_their_module() -> None:
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    with observe() as observation:
        train(model, torch.optim.SGD(model.parameters(), lr=0.1), 3)
        model.eval()
        model(torch.ones(2, 3))
    kept = Kept.of(observation.table)
    # Inference normalises with the buffers and does not write to them.
    for name in ("running_mean", "num_batches_tracked"):
        assert _by(kept, f"model.1.{name}", "data") == ["torch.nn.BatchNorm1d.forward"] * 2


def test_in_optimizer_is_false_for_parameters_that_no_optimizer_holds() -> None:
    net, other = Net(), Net()
    with observe() as observation:
        train(net, torch.optim.SGD(other.parameters(), lr=0.1), 1)
    held = {
        change.object: change.after.plain
        for change in Kept.of(observation.table).samples
        if change.attribute == "in_optimizer"
    }
    assert held["model.one.weight"] is False
    assert not Kept.of(observation.table).of_object("model.one.weight", "in_optimizer")
    assert held["optimizer.params.0.0"] is True


def test_parts_of_a_model_are_recorded_under_their_given_prefixes() -> None:
    first, last = Net(), Net()
    with observe() as observation:
        observation.model(first, "layers.4")
        observation.model(last, "layers.5")
        train(nn.Sequential(first, nn.Linear(2, 3)), torch.optim.SGD(last.parameters()), 1)
        last(torch.ones(2, 3))
    kept = Kept.of(observation.table)
    names = {change.object for change in kept.samples}
    assert "model.layers.5.one.weight" in names
    last_call = kept.called("torch.nn.Linear.forward")[-1]
    assert last_call.values["self.name"].plain == "layers.5.two"


def test_a_second_model_and_a_second_optimizer_have_numbered_names() -> None:
    first, second = Net(), Net()
    with observe() as observation:
        one = torch.optim.SGD(first.parameters(), lr=0.1)
        two = torch.optim.Adam(second.parameters())
        for _ in range(2):
            train(first, one, 1)
            train(second, two, 1)
    kept = Kept.of(observation.table)
    assert kept.steps == [0, 1], "the first optimizer ends a step"
    assert _by(kept, "model2.one.weight", "data")[0] == "torch.optim.Adam.step"
    assert kept.of_object("optimizer2.state.model2.one.weight", "exp_avg")


def test_a_wrapper_does_not_change_the_parameter_names_of_the_wrapped_model() -> None:
    class Wrapper(nn.Module):
        def __init__(self, module: nn.Module) -> None:
            super().__init__()
            self.module = module

        def forward(self, x: torch.Tensor) -> Any:
            return self.module(x)

    net = Net()
    with observe() as observation:
        net(torch.ones(2, 3))
        train(Wrapper(net), torch.optim.SGD(net.parameters(), lr=0.1), 1)
    names = {change.object for change in Kept.of(observation.table).samples}
    assert {name for name in names if name.endswith("one.weight")} == {"model.one.weight"}


def test_numbers_in_loaders_samplers_and_schedulers_are_recorded() -> None:
    def warm(step: int, total: int) -> float:
        return min(1.0, step / total)

    data = TensorDataset(torch.zeros(10, 3))
    sampler: DistributedSampler[Any] = DistributedSampler(data, num_replicas=2, rank=0)
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    scale = 3
    with observe() as observation:
        loader = DataLoader(data, batch_size=2, sampler=sampler)
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, [functools.partial(warm, total=7)])
        torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: scale * 1.0)
        for epoch in range(2):
            sampler.set_epoch(epoch)
            for _ in loader:
                train(net, optimizer, 1)
            scheduler.step()
    kept = Kept.of(observation.table)
    last = {(c.object, c.attribute): c.after.plain for c in kept.samples}
    assert last["scheduler.0", "lr_lambdas.0.total"] == 7
    assert last["scheduler.1", "lr_lambdas.0.scale"] == 3
    assert (last["loader.0", "length"], last["loader.0", "epoch"]) == (3, 1)
    assert (last["loader.0", "dataset_length"], last["loader.0", "batches"]) == (10, 3)
    assert (last["sampler.0", "epoch"], last["sampler.0", "num_samples"]) == (1, 5)
    assert _by(kept, "sampler.0", "epoch") == ["torch.utils.data.DistributedSampler.set_epoch"]
    steps = kept.called("torch.optim.SGD.step")
    assert [call.meta["epoch"] for call in steps] == [0, 0, 0, 1, 1, 1]


def test_changes_of_a_loss_scale_are_attributed_to_the_scalers_update() -> None:
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with observe() as observation:
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=1)
        scaler.scale(net(torch.ones(2, 3)).mean()).backward()
        scaler.step(optimizer)
        scaler.update()
        observation.meta(step=1)
    kept = Kept.of(observation.table)
    grown = [change.after.plain for change in kept.of_object("scaler.0", "scale")]
    assert grown[-1] == 8.0
    assert _by(kept, "scaler.0", "scale")[-1] == "torch.amp.GradScaler.update"


def test_numbers_of_followed_objects_and_user_meta_variables_are_recorded() -> None:
    class Trainer:
        def __init__(self) -> None:
            self.total_steps = 8

    trainer, net = Trainer(), Net()
    with observe() as observation:
        observation.follow("trainer", trainer)
        observation.meta(accumulate=2)
        train(net, torch.optim.SGD(net.parameters(), lr=0.1), 1)
        trainer.total_steps = 4
        train(net, torch.optim.SGD(net.parameters(), lr=0.1), 1)
        observation.meta(step=9)
    kept = Kept.of(observation.table)
    [change] = kept.of_object("program.trainer", "total_steps")
    assert change.before is not None
    assert (change.before.plain, change.after.plain) == (8, 4)
    assert {c.after.plain for c in kept.samples if c.object == "program"} == {2}
    assert {call.meta["user.accumulate"] for call in kept.calls} == {2}


def test_a_saved_state_dict_has_the_content_digest_of_its_model(tmp_path: Any) -> None:
    model = nn.Sequential(*(nn.Linear(2, 2) for _ in range(5)))
    with observe() as observation:
        state = model.state_dict()
        torch.save(state, tmp_path / "good")
        state["0.bias"] = state["0.bias"] + 1
        torch.save(state, tmp_path / "bad")
    kept = Kept.of(observation.table)
    [taken] = kept.called("torch.nn.Sequential.state_dict")
    good, bad = kept.called("torch.save")
    assert taken.values["result.content"] == good.values["arg.obj.content"]
    assert taken.values["result.content"] != bad.values["arg.obj.content"]
    assert bad.values["arg.obj.names"] == good.values["arg.obj.names"]
    assert bad.values["arg.obj.length"].plain == 10
    assert good.meta["phase"] == "save"


def test_an_observation_does_not_keep_a_model_alive() -> None:
    with observe() as observation:
        net = Net()
        train(net, torch.optim.SGD(net.parameters(), lr=0.1), 1)
        gone = weakref.ref(net)
        del net
        gc.collect()
        assert gone() is None
        other = Net()
        train(other, torch.optim.SGD(other.parameters(), lr=0.1), 1)
    assert observation.unseen == ()
