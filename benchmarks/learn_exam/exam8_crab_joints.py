"""Places of a crab's joints in small pictures, half of which are seen in a mirror.

Follows https://github.com/robertklee/COCO-Human-Pose/pull/29.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

EDGE = 10
JOINTS = ("mouth", "left claw", "right claw", "left eye", "right eye")
PAIRS = ((1, 2), (3, 4))


class Crabs(Dataset[tuple[Tensor, Tensor]]):
    """Pictures and joints, as (across, up) from -1 to 1; each is mirrored with an even chance."""

    def __init__(self, count: int, source: torch.Generator, swaps: bool) -> None:
        self.source, self.swaps = source, swaps
        rest = torch.tensor([[0, -0.2], [-0.7, 0.5], [0.7, 0.5], [-0.3, 0.1], [0.3, 0.1]])
        self.joints = rest + 0.12 * torch.randn(count, len(JOINTS), 2, generator=source)
        self.joints[..., 0] += 0.15 * torch.randn(count, 1, generator=source)
        self.pictures = torch.stack([self.draw(each) for each in self.joints])

    @staticmethod
    def draw(joints: Tensor) -> Tensor:
        line = torch.linspace(-1, 1, EDGE)
        across = (line - joints[:, :1]).square()
        up = (line - joints[:, 1:]).square()
        blobs = (-12 * (up[:, :, None] + across[:, None, :])).exp()
        return blobs.sum(0, keepdim=True)

    def __len__(self) -> int:
        return len(self.joints)

    def __getitem__(self, at: int) -> tuple[Tensor, Tensor]:
        picture, joints = self.pictures[at], self.joints[at].clone()
        if torch.rand(1, generator=self.source).item() < 0.5:
            picture = picture.flip(-1)
            joints[:, 0] = -joints[:, 0]
            if self.swaps:
                for left, right in PAIRS:
                    joints[[left, right]] = joints[[right, left]]
        return picture, joints


def train(healthy: bool = True, seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    crabs = Crabs(96, torch.Generator().manual_seed(seed), swaps=healthy)
    net = nn.Sequential(
        nn.Conv2d(1, size, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(size * (EDGE // 2) ** 2, 2 * size),
        nn.ReLU(),
        nn.Linear(2 * size, 2 * len(JOINTS)),
        nn.Unflatten(1, (len(JOINTS), 2)),
    )
    optimizer = torch.optim.Adam(net.parameters(), lr=0.004)
    curve = []
    for _ in range(8):
        for picture, joints in DataLoader(crabs, batch_size=16, shuffle=True):
            loss = F.mse_loss(net(picture), joints)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            curve.append(loss.item())
    return {"loss": curve}
