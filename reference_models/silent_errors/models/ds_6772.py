"""DeepSpeed 6772 (TrainCheck, Table 5): the engine overwrites an attribute of the user's modules.

https://github.com/deepspeedai/DeepSpeed/issues/6772, fixed by pull request 6847: ZeRO-3 numbers
modules in their attribute `id`.  A program that uses this attribute to place its experts then finds
them on the wrong devices.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pytest_trainsafe.reference_models.toolkit.devices import place
from pytest_trainsafe.reference_models.toolkit.engine import Engine
from pytest_trainsafe.reference_models.training.outcome import Outcome


class Overwriting(Engine):
    """An engine with the error: it overwrites the attribute `id` of the user's modules."""

    def number_modules(self, model: nn.Module) -> None:
        """Set the attribute `id` of each module to the module's number."""
        for number, module in enumerate(model.modules()):
            module.id = number  # type: ignore[assignment]


class Expert(nn.Sequential):
    """A perceptron with a number that says on which device it belongs."""

    id: int

    def __init__(self, width: int, id: int) -> None:
        super().__init__(nn.Linear(width, width), nn.ReLU())
        self.id = id


class Experts(nn.Module):
    """As many experts as there are devices, one on each."""

    def __init__(self, width: int, devices: int) -> None:
        super().__init__()
        self.devices = devices
        self.experts = nn.ModuleList(Expert(width, number) for number in range(devices))
        self.gate, self.head = nn.Linear(width, devices), nn.Linear(width, 4)

    def places(self) -> list[int]:
        """Place each expert on the device with the number `id` modulo the number of devices.

        Returns the device number of each expert.
        """
        return [place(each, int(str(each.id)) % self.devices) for each in self.experts]

    def forward(self, inputs: Tensor) -> Tensor:
        """The class scores, from the gated sum of the experts' outputs."""
        weights = F.softmax(self.gate(inputs), dim=-1)
        outputs = torch.stack([each(inputs) for each in self.experts], dim=-1)
        scores: Tensor = self.head((outputs * weights[:, None]).sum(dim=-1))
        return scores


def train(*, faulty: bool, seed: int = 0, steps: int = 4) -> Outcome:
    """Train a mixture of experts with an engine.

    In the Outcome, `facts["places"]` has the device of each expert.
    """
    torch.manual_seed(seed)
    model = Experts(width=12, devices=3)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    engine = (Overwriting if faulty else Engine)(model, optimizer)
    places = model.places()
    losses = []
    for _ in range(steps):
        labels = torch.randint(4, (24,))
        inputs = torch.randn(24, 12)
        inputs[torch.arange(24), labels] += 2.0
        loss = F.cross_entropy(model(inputs), labels)
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    return Outcome(losses, {"places": places})
