"""MMPretrain 702 (TrainCheck's B20): a backbone that freezes its stages too late.

https://github.com/open-mmlab/mmpretrain/issues/702: SwinTransformer and VGG call `_freeze_stages`
in `train()` but not in `__init__`.  Whatever looks at `requires_grad` between the two, such as the
optimizer or DistributedDataParallel, takes the frozen stages for trainable ones, and then waits
for gradients that do not come.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pytest_trainsafe.reference_models.training.outcome import Outcome


class Backbone(nn.Module):
    """Stages of linear layers, the first `frozen_stages` of which are not trained."""

    def __init__(self, width: int, stages: int, frozen_stages: int) -> None:
        super().__init__()
        self.frozen_stages = frozen_stages
        self.stages = nn.ModuleList(
            nn.Sequential(nn.Linear(width, width), nn.LayerNorm(width), nn.GELU())
            for _ in range(stages)
        )
        self.built()

    def built(self) -> None:
        """Freeze the first stages.  `__init__` calls this method last."""
        self.freeze_stages()

    def freeze_stages(self) -> None:
        """Exclude the first stages from training."""
        for stage in self.stages[: self.frozen_stages]:
            stage.eval()
            for parameter in stage.parameters():
                parameter.requires_grad = False

    def train(self, mode: bool = True) -> Backbone:
        """Switch the mode; frozen stages stay frozen."""
        super().train(mode)
        self.freeze_stages()
        return self

    def forward(self, inputs: Tensor) -> Tensor:
        """The features of a batch of patches, averaged."""
        for stage in self.stages:
            inputs = stage(inputs)
        return inputs.mean(dim=1)


class LateFreezing(Backbone):
    """A backbone with the error: nothing is frozen until `train` is called."""

    def built(self) -> None:
        """Freeze nothing, which is the error."""


def train(*, faulty: bool, seed: int = 0, steps: int = 6) -> Outcome:
    """Fine-tune a head and the last stages on synthetic patches."""
    torch.manual_seed(seed)
    backbone = (LateFreezing if faulty else Backbone)(width=16, stages=3, frozen_stages=1)
    model = nn.Sequential(backbone, nn.Linear(16, 5))
    trainable = [each for each in model.parameters() if each.requires_grad]
    optimizer = torch.optim.SGD(trainable, lr=5e-2, momentum=0.9)
    model.train()
    losses = []
    for _ in range(steps):
        labels = torch.randint(5, (16,))
        patches = torch.randn(16, 9, 16)
        patches[torch.arange(16), :, labels] += 2.0
        loss = F.cross_entropy(model(patches), labels)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(loss.item())
    idle = sum(each.grad is None for each in trainable)
    return Outcome(losses, {"trainable": len(trainable), "idle": idle})
