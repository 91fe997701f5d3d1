"""DeepSpeed 5489 (TrainCheck, Table 5): frozen weights are missing in the checkpoint.

https://github.com/deepspeedai/DeepSpeed/issues/5489, diagnosed in issue 6771: the optimizer of
DeepSpeed's engine does not manage parameters that were frozen before `deepspeed.initialize`, and
the engine's checkpoint has only the parameters that this optimizer manages.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F

from pytest_trainsafe.reference_models.toolkit.engine import Engine
from pytest_trainsafe.reference_models.training.outcome import Outcome


class SavingItsOwn(Engine):
    """An engine with the error: it saves only the parameters that the optimizer manages."""

    def weights(self) -> dict[str, Tensor]:
        """Return the weights that the optimizer manages, by name."""
        managed = set(self.names)
        state = self.model.state_dict()
        return {name: tensor for name, tensor in state.items() if name in managed}


def train(*, faulty: bool, seed: int = 0, steps: int = 4) -> Outcome:
    """Fine-tune the upper layers and save the model.

    In the Outcome, `facts["written"]` is the number of tensors written, and `facts["missing"]` has
    the names of the parameters that were not written.
    """
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(16, 24), nn.GELU(), nn.Linear(24, 24), nn.Linear(24, 1))
    model[0].requires_grad_(False)
    trained = [each for each in model.parameters() if each.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-2)
    engine = (SavingItsOwn if faulty else Engine)(model, optimizer)
    target = torch.randn(16, 1)
    losses = []
    for _ in range(steps):
        inputs = torch.randn(32, 16)
        loss = F.mse_loss(model(inputs), inputs @ target)
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "checkpoint.safetensors"
        written = engine.save(path)
        saved = set(load_file(path))
    missing = sorted(set(model.state_dict()) - saved)
    return Outcome(losses, {"written": written, "missing": missing})
