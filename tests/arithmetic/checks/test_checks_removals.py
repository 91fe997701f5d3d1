"""An entry that is removed from the table is named by a training step that needs it."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from pytest_trainsafe.arithmetic import Doubles, ExactMode, MissingSemanticsError, table

NAMES = (
    *("aten.addmm", "aten.native_layer_norm", "aten.native_layer_norm_backward", "aten.gelu"),
    *("aten._log_softmax", "aten.nll_loss_backward", "aten.linalg_vector_norm", "aten.clamp"),
    *("aten.sqrt", "aten.addcdiv", "aten.lerp", "aten.t"),
)


def step(entries):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6), nn.GELU(), nn.Linear(6, 3)).double()
    mode = ExactMode(Doubles(), entries)
    mode.enter_(*model.parameters())
    with mode:
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, foreach=False)
        x = torch.ones(2, 4, dtype=torch.float64)
        functional.cross_entropy(model(x), torch.tensor([0, 2])).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()


@pytest.mark.parametrize("name", NAMES)
def test_a_removed_entry_is_named_by_the_step_that_needs_it(name):
    entries = table()
    del entries[name]
    with pytest.raises(MissingSemanticsError) as raised:
        step(entries)
    assert raised.value.operator.removesuffix("_") == name
