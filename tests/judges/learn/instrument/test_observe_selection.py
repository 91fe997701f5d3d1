"""Only selected APIs, variables and steps are observed, and unknown APIs are listed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from pytest_trainsafe import observe
from pytest_trainsafe.errors import ArgumentError, ArgumentTypeError
from pytest_trainsafe.record.clock import ProgramError
from tests.support.learn.observing import Kept, Net, train


def _trained(**keywords: Any) -> tuple[Kept, tuple[str, ...]]:
    net = Net()
    with observe(**keywords) as observation:
        train(net, torch.optim.AdamW(net.parameters()), 4)
    return Kept.of(observation.table), observation.unseen


def test_only_named_apis_and_variables_are_recorded() -> None:
    apis = ["torch.optim.AdamW.zero_grad", "torch.nn.Linear.forward"]
    kept, unseen = _trained(apis=apis, variables=["model.*.grad"])
    assert set(kept.apis()) == set(apis)
    assert {change.attribute for change in kept.samples} == {"grad"}
    assert unseen == ()
    kept, _ = _trained(apis=["torch.nn.functional"], variables=())
    assert {api.rpartition(".")[0] for api in kept.apis()} == {"torch.nn.functional"}
    assert (kept.changes, kept.samples, kept.steps) == ([], [], [0, 1, 2, 3])


def test_a_selected_api_is_recorded_as_in_a_full_observation() -> None:
    wanted = "torch.nn.functional.relu"
    one, _ = _trained(apis=[wanted])
    full, _ = _trained()

    def of(kept: Kept) -> list[object]:
        return [(call.meta, sorted(call.values)) for call in kept.called(wanted)]

    assert of(one) == of(full)
    names = [[(c.object, c.attribute) for c in kept.changes] for kept in (one, full)]
    assert names[0] == names[1]


def test_steps_are_sampled_after_a_warm_up() -> None:
    kept, _ = _trained(sample=(2, 1))
    assert kept.steps == [0, 1, 3]
    assert {call.meta["step"] for call in kept.called("torch.optim.AdamW.step")} == {0, 1, 3}
    # State is read again when recording resumes: changes in skipped steps are not recorded.
    data = kept.of_object("model.one.weight", "data")
    assert [change.meta["step"] for change in data] == [0, 1, 3]
    assert all(change.by is not None for change in data)


def test_a_function_outside_of_the_catalogue_is_observed_if_it_is_named() -> None:
    with observe(["torch.matmul", "torch.Tensor.mul_", "json.dumps"]) as observation:
        torch.matmul(torch.ones(2), torch.ones(2)).mul_(2)
        F.relu(torch.ones(2))
    assert Kept.of(observation.table).apis() == ["torch.matmul", "torch.Tensor.mul_"]
    assert observation.unseen == ()


def test_an_api_that_does_not_exist_is_listed_as_unseen() -> None:
    with observe(["torch.optim.Adam.leap", "no_such_library.f"]) as observation:
        pass
    assert [text.partition(":")[0] for text in observation.unseen] == [
        "torch.optim.Adam.leap",
        "no_such_library.f",
    ]


def test_operators_are_recorded_only_on_request() -> None:
    x = torch.ones(2)
    with observe() as without:
        x + 1
    with observe(operators=True) as observation:
        x + 1
    assert Kept.of(without.table).calls == []
    [add] = Kept.of(observation.table).calls
    assert add.api == "torch.ops.aten.add.Tensor"
    assert add.values["arg.other"].plain == 1
    assert add.values["result"].tensor is not None


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"apis": "torch.optim"}, "list of names"),
        ({"apis": ["torch..optim"]}, "'torch..optim' is not a valid name"),
        ({"apis": [".torch.optim"]}, "'.torch.optim' is not a valid name"),
        ({"variables": [1]}, "1 is not a str"),
        ({"sample": 10}, "pair of ints"),
        ({"sample": (0, 1)}, "at least 1"),
        ({"listeners": [object()]}, "not a Listener"),
    ],
)
def test_invalid_arguments_of_observe_are_refused(keywords: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message), observe(**keywords):
        pass


def test_meta_refuses_tensors_and_a_non_integer_epoch() -> None:
    with observe() as observation:
        with pytest.raises(ArgumentTypeError, match=r"tensor.item\(\)"):
            observation.meta(loss=torch.ones(1))
        with pytest.raises(ArgumentTypeError, match="epoch must be an int"):
            observation.meta(epoch="first")


def test_a_nested_observation_is_refused() -> None:
    with observe() as outer:
        with pytest.raises(ProgramError, match="already being observed"), observe():
            pass
        F.relu(torch.ones(1))
    assert Kept.of(outer.table).apis() == ["torch.nn.functional.relu"]
