"""Fine-tuning by gradual unfreezing with a rate for each layer (ULMFiT, Howard and Ruder, 2018).

A group of parameters is added to the optimizer for each layer that is unfrozen.  Norms of the
encoder stay in evaluation mode while their layer is frozen.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Block(nn.Module):
    """A residual block with a norm."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(d)
        self.up, self.down = nn.Linear(d, 2 * d), nn.Linear(2 * d, d)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.down(F.relu(self.up(self.norm(x))))
        return x + y


class Classifier(nn.Module):
    """Blocks and a head."""

    def __init__(self, n_in: int, d: int, depth: int, n_out: int) -> None:
        super().__init__()
        self.stem = nn.Linear(n_in, d)
        self.blocks = nn.ModuleList(Block(d) for _ in range(depth))
        self.head = nn.Linear(d, n_out)
        self.frozen: set[nn.Module] = set()

    def freeze(self, module: nn.Module) -> None:
        for p in module.parameters():
            p.requires_grad = False
        self.frozen.add(module)

    def unfreeze(self, module: nn.Module) -> None:
        for p in module.parameters():
            p.requires_grad = True
        self.frozen.discard(module)

    def train(self, mode: bool = True) -> Classifier:
        """Put all but the frozen parts into training mode."""
        super().train(mode)
        for module in self.frozen:
            module.eval()
        return self

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        out: Tensor = self.head(x)
        return out


def pretrained(n_in: int, d: int, depth: int) -> dict[str, Tensor]:
    """The state of an encoder that was trained on another task, without its head."""
    net = Classifier(n_in, d, depth, 2)
    opt = torch.optim.SGD(net.parameters(), lr=0.05)
    for _ in range(4):
        x = torch.randn(32, n_in)
        loss = F.cross_entropy(net(x), (x[:, 0] > 0).long())
        opt.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        opt.step()
    return {k: v.clone() for k, v in net.state_dict().items() if not k.startswith("head.")}


def train(
    *,
    seed: int = 0,
    steps: int = 12,
    d: int = 12,
    depth: int = 2,
    every: int = 4,
    lr: float = 0.05,
    discount: float = 2.6,
) -> list[float]:
    """Unfreeze one more block after each `every` steps, the last one first."""
    torch.manual_seed(seed)
    state = pretrained(6, d, depth)
    model = Classifier(6, d, depth, 3)
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert not unexpected
    assert all(k.startswith("head.") for k in missing)
    for module in (model.stem, *model.blocks):
        model.freeze(module)
    optimizer = torch.optim.SGD(model.head.parameters(), lr=lr, momentum=0.9)
    waiting = list(model.blocks)
    losses = []
    for step in range(steps):
        if step and step % every == 0 and waiting:
            block = waiting.pop()
            model.unfreeze(block)
            lr /= discount
            optimizer.add_param_group({"params": list(block.parameters()), "lr": lr})
        model.train()
        x = torch.randn(32, 6)
        y = (x[:, 0] > 0.4).long() + (x[:, 0] > -0.4).long()
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(loss.item())
    return losses
