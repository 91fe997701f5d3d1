"""Data that a model writes to, and recurrent states of other batches, are noticed."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from tests.support.learn.slips import sgd, slips_of


class Centres(nn.Module):
    """A layer behind something that may work in place."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.layer, self.how = nn.Linear(4, 2), how

    def forward(self, x: Tensor) -> Tensor:
        if self.how == "in place":
            x -= 0.1
        if self.how == "relu in place":
            x = nn.functional.relu(x, inplace=True)
        if self.how == "new":
            x = x - 0.1
        found: Tensor = self.layer(x)
        return found


@pytest.mark.parametrize("copied", [False, True])
@pytest.mark.parametrize("how", ["in place", "relu in place", "new"])
def test_a_model_that_writes_into_the_stored_data(how: str, copied: bool) -> None:
    def program() -> None:
        data, model = torch.randn(24, 4), Centres(how)
        optimizer = sgd(model)
        for _ in range(3):
            for rows in data.split(8):
                optimizer.zero_grad()
                model(rows.clone() if copied else rows).square().mean().backward()
                optimizer.step()

    assert slips_of(program) == ["input-overwritten"] * (how == "in place" and not copied)


@pytest.mark.parametrize(
    ("shuffled", "carries", "wrong"),
    [(True, True, True), (False, True, False), (True, False, False)],
)
@pytest.mark.parametrize("kind", [nn.GRU, nn.LSTM])
def test_a_state_that_is_carried_to_other_examples(
    kind: type[nn.GRU] | type[nn.LSTM], shuffled: bool, carries: bool, wrong: bool
) -> None:
    def program() -> None:
        model = kind(3, 4, batch_first=True)
        optimizer = sgd(model)
        loader = DataLoader(TensorDataset(torch.randn(24, 6, 3)), 8, shuffle=shuffled)
        state = None
        for (x,) in loader:
            for part in x.chunk(2, 1):  # the state of the first half is that of the same texts
                optimizer.zero_grad()
                out, after = model(part, state)
                out.square().mean().backward()
                optimizer.step()
                many = after if isinstance(after, tuple) else (after,)
                kept = tuple(each.detach() for each in many)
                state = kept if isinstance(after, tuple) else kept[0]
            state = state if carries else None

    assert slips_of(program) == ["state-carried"] * wrong
