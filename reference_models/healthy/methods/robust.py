"""TRADES (Zhang et al., 2019): the clean loss plus a divergence at adversarial inputs.

The attack runs the model in evaluation mode and takes gradients in the inputs only.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def perturb(model: nn.Module, x_natural: Tensor, epsilon: float, perturb_steps: int) -> Tensor:
    """Return inputs within `epsilon` whose predictions differ most from those of `x_natural`."""
    criterion_kl = nn.KLDivLoss(reduction="sum")
    model.eval()
    x_adv = x_natural.detach() + 0.001 * torch.randn_like(x_natural)
    for _ in range(perturb_steps):
        x_adv.requires_grad_()
        with torch.enable_grad():
            loss_kl = criterion_kl(
                F.log_softmax(model(x_adv), dim=1), F.softmax(model(x_natural), dim=1)
            )
        grad = torch.autograd.grad(loss_kl, [x_adv])[0]
        x_adv = x_adv.detach() + 0.5 * epsilon * torch.sign(grad.detach())
        x_adv = torch.min(torch.max(x_adv, x_natural - epsilon), x_natural + epsilon)
    model.train()
    return x_adv.detach()


def robust_accuracy(model: nn.Module, x: Tensor, y: Tensor, epsilon: float) -> float:
    """The accuracy under the fast gradient sign method."""
    model.eval()
    x = x.clone().requires_grad_(True)
    loss = F.cross_entropy(model(x), y)
    model.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    assert x.grad is not None
    with torch.no_grad():
        predicted = model(x + epsilon * x.grad.sign()).argmax(1)
    model.zero_grad()
    model.train()
    return float((predicted == y).float().mean())


def train(
    *,
    seed: int = 0,
    steps: int = 10,
    channels: int = 6,
    epsilon: float = 0.1,
    perturb_steps: int = 2,
    beta: float = 3.0,
) -> list[float]:
    """Classify stripes; every fourth step, attack the test set with another method."""
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Conv2d(1, channels, 3, padding=1),
        nn.BatchNorm2d(channels),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(channels * 36, 3),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=2e-4)
    patterns = torch.randn(3, 1, 6, 6)
    test_y = torch.arange(18) % 3
    test_x = patterns[test_y] + 0.3 * torch.randn(18, 1, 6, 6)
    log = []
    model.train()
    for batch_idx in range(steps):
        target = torch.randint(3, (16,))
        data = patterns[target] + 0.3 * torch.randn(16, 1, 6, 6)
        x_adv = perturb(model, data, epsilon, perturb_steps)
        optimizer.zero_grad()
        logits = model(data)
        loss_natural = F.cross_entropy(logits, target)
        loss_robust = F.kl_div(
            F.log_softmax(model(x_adv), dim=1), F.softmax(logits, dim=1), reduction="batchmean"
        )
        loss = loss_natural + beta * loss_robust
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        log.append(loss_natural.item())
        if batch_idx % 4 == 3:
            robust_accuracy(model, test_x, test_y, epsilon)
    return log
