"""Slips in states that are kept and loaded are noticed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from tests.support.learn.slips import loss_of, net, sgd, slips_of, steps


@pytest.mark.parametrize(
    ("kept", "slips"), [("state", ["loaded-itself"]), ("copy", []), ("at once", [])]
)
def test_the_best_state_is_kept_and_loaded(kept: str, slips: list[str]) -> None:
    def program() -> None:
        model = net()
        optimizer = sgd(model)
        steps(model, optimizer)
        best = dict(model.state_dict())
        if kept == "copy":
            best = {name: each.clone() for name, each in best.items()}
        if kept != "at once":  # as a checkpoint that is read into the model's own tensors
            steps(model, optimizer)
        model.load_state_dict(best)
        steps(model, optimizer)

    assert slips_of(program) == slips


@pytest.mark.parametrize(
    ("prefix", "slips"), [("module.", ["prefix-differs"]), ("", []), ("other_", [])]
)
def test_a_part_of_a_state_that_fits_with_another_prefix(prefix: str, slips: list[str]) -> None:
    def program() -> None:
        model = net()
        state = {
            name if name.startswith("0") else f"{prefix}{name}": each.clone()
            for name, each in net().state_dict().items()
        }
        model.load_state_dict(state, strict=False)
        steps(model, sgd(model), 2)

    assert slips_of(program) == slips


def test_a_new_head_on_loaded_layers_is_no_slip() -> None:
    def program() -> None:
        body = net()
        model = nn.ModuleDict({"0": body[0], "head": nn.Linear(4, 3)})
        model.load_state_dict(
            {name: each.clone() for name, each in net().state_dict().items()}, strict=False
        )
        steps(body, sgd(body), 2)

    assert slips_of(program) == []


@pytest.mark.parametrize("loads", [False, True])
def test_the_state_of_a_scaler_in_a_checkpoint(loads: bool, tmp_path: Path) -> None:
    def program() -> None:
        model, scaler = net(), torch.amp.GradScaler("cpu")
        file = tmp_path / "last.pt"
        torch.save({"model": model.state_dict(), "scaler": scaler.state_dict()}, file)
        state = torch.load(file)
        model.load_state_dict(state["model"])
        if loads:
            scaler.load_state_dict(state["scaler"])
        optimizer = sgd(model)
        for _ in range(2):
            optimizer.zero_grad()
            scaler.scale(loss_of(model)).backward()
            scaler.step(optimizer)
            scaler.update()

    assert slips_of(program) == ["scaler-not-resumed"] * (not loads)


@pytest.mark.parametrize(("width", "slips"), [(4, ["prefix-differs"]), (6, [])])
def test_a_state_under_other_names_of_the_same_shapes(width: int, slips: list[str]) -> None:
    def program() -> None:
        model = net()
        state = {
            name if name == "0.bias" else name.replace(".", "_"): each.clone()
            for name, each in net(width).state_dict().items()
        }
        state["0.bias"] = torch.zeros(4)
        model.load_state_dict(state, strict=False)
        steps(model, sgd(model), 2)

    assert slips_of(program) == slips
