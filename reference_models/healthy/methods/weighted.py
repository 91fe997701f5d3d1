"""Three losses with weights, whose proportions are learned with the model (Kendall et al., 2018).

Classes are weighted by their rarity, border pixels are ignored, and positives of a third task count
more.  The logarithms of the variances belong to the optimizer and to no module.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

IGNORE = 255


class Net(nn.Module):
    """A shared encoder with a head each for segmentation, depth and the presence of objects."""

    def __init__(self, width: int, n_classes: int) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(3, width, 3, padding=1),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, width, 3, padding=1),
            nn.ReLU(inplace=True),
        )
        self.segmentation = nn.Conv2d(width, n_classes, 1)
        self.depth = nn.Conv2d(width, 1, 1)
        self.presence = nn.Linear(width, n_classes)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the scores of each pixel, its depth, and the scores of each class."""
        h = self.encoder(x)
        return self.segmentation(h), self.depth(h), self.presence(h.mean((2, 3)))


def make_batch(n: int, n_classes: int, colours: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return images, labels with an ignored border, depths, and which classes are present."""
    labels = torch.randint(n_classes, (n, 4, 4)).repeat_interleave(2, 1).repeat_interleave(2, 2)
    labels[torch.rand(labels.shape) < 0.3] = 0  # the background is the most frequent class
    images = colours[labels].permute(0, 3, 1, 2) + 0.2 * torch.randn(n, 3, 8, 8)
    depth = labels.unsqueeze(1).float() / n_classes + 0.05 * torch.randn(n, 1, 8, 8)
    present = torch.stack([(labels == c).flatten(1).any(1) for c in range(n_classes)], 1)
    labels = F.pad(labels[:, 1:-1, 1:-1], (1, 1, 1, 1), value=IGNORE)
    return images, labels, depth, present.float()


def train(
    *,
    seed: int = 0,
    steps: int = 14,
    width: int = 8,
    n_classes: int = 4,
    lr: float = 1e-2,
    focal: bool = False,
) -> list[float]:
    """Train with Adam; with `focal`, easy pixels count less."""
    torch.manual_seed(seed)
    colours = torch.randn(n_classes, 3)
    net = Net(width, n_classes)
    log_vars = torch.zeros(3, requires_grad=True)
    class_weights = torch.tensor([0.4] + [1.2] * (n_classes - 1))
    optimizer = torch.optim.Adam(
        [
            {"params": net.parameters(), "weight_decay": 1e-4},
            {"params": [log_vars], "lr": 0.1 * lr},
        ],
        lr=lr,
    )
    history = []
    net.train()
    for _ in range(steps):
        images, labels, depth, present = make_batch(6, n_classes, colours)
        seg_logits, depth_hat, presence_logits = net(images)
        if focal:
            ce = F.cross_entropy(seg_logits, labels, ignore_index=IGNORE, reduction="none")
            valid = labels != IGNORE
            seg_loss = ((1 - (-ce).exp()) ** 2 * ce)[valid].mean()
        else:
            seg_loss = F.cross_entropy(seg_logits, labels, class_weights, ignore_index=IGNORE)
        mask = (labels != IGNORE).unsqueeze(1)
        depth_loss = (F.l1_loss(depth_hat, depth, reduction="none") * mask).sum() / mask.sum()
        presence_loss = F.binary_cross_entropy_with_logits(
            presence_logits, present, pos_weight=torch.full((n_classes,), 0.5)
        )
        losses = torch.stack([seg_loss, depth_loss, presence_loss])
        loss = (losses * torch.exp(-log_vars) + log_vars).sum()
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        history.append(losses.sum().item())
    return history
