"""What a checkpoint brings back for another parameter, or not at all, is noticed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Subset, TensorDataset, random_split

from tests.support.learn.slips import net, slips_of, steps


def adam(model: nn.Module, *, reverse: bool = False) -> torch.optim.Adam:
    parameters = list(model.parameters())
    return torch.optim.Adam(parameters[::-1] if reverse else parameters, lr=0.01)


@pytest.mark.parametrize("reverse", [False, True])
def test_a_state_that_is_loaded_by_position(reverse: bool) -> None:
    def program() -> None:
        model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), nn.Linear(4, 4))
        optimizer = adam(model)
        steps(model, optimizer, 2)
        state = optimizer.state_dict()
        if reverse:  # the sizes fit, so torch says nothing
            groups = [list(model[at].parameters()) for at in (2, 0, 3)]
            resumed = torch.optim.Adam([each for group in groups for each in group], lr=0.01)
        else:
            resumed = adam(model)
        resumed.load_state_dict(state)
        steps(model, resumed, 2)

    assert slips_of(program) == ["state-permuted"] * reverse


@pytest.mark.parametrize("kind", ["lost", "restored", "model only", "goes back"])
def test_the_state_of_the_generator(kind: str, tmp_path: Path) -> None:
    def program() -> None:
        model = net()
        optimizer = adam(model)
        steps(model, optimizer, 2)
        file = tmp_path / "checkpoint.pt"
        held = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save({**held, "random": {"torch": torch.get_rng_state()}}, file)
        found = torch.load(file)
        if kind != "goes back":
            model = net()
            optimizer = adam(model)
        model.load_state_dict(found["model"])
        if kind != "model only":
            optimizer.load_state_dict(found["optimizer"])
        if kind == "restored":
            torch.set_rng_state(found["random"]["torch"])
        steps(model, optimizer, 2)

    found = slips_of(program)
    assert ("generator-not-resumed" in found) == (kind == "lost")


@pytest.mark.parametrize(
    ("how", "wrong"),
    [("anew", True), ("seeded", False), ("not resumed", False), ("first split kept", False)],
)
def test_data_that_are_split_anew_where_a_training_goes_on(how: str, wrong: bool) -> None:
    def program() -> None:
        model = net()
        optimizer = adam(model)
        examples, kept = TensorDataset(torch.arange(40)), None
        for part in range(2):
            generator = torch.Generator().manual_seed(1 if how == "seeded" else part)
            used, _ = random_split(examples, [30, 10], generator=generator)
            kept = list(used.indices) if kept is None else kept
            if part and how != "not resumed":
                state = optimizer.state_dict()
                optimizer = adam(model)
                optimizer.load_state_dict(state)
            if how == "first split kept":
                used = Subset(examples, kept)
            for _batch in DataLoader(used, 15):
                steps(model, optimizer, 1)

    assert slips_of(program) == ["validation-overlaps"] * wrong
