"""Teaches a small encoder the token features of a larger one that was trained before."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn


@dataclass
class Recipe:
    seed: int
    width: int
    vocabulary: int = 12
    length: int = 6
    warmup_steps: int = 25
    steps: int = 40


def encoder(recipe: Recipe, hidden: int, dropout: float) -> nn.Sequential:
    return nn.Sequential(
        nn.Embedding(recipe.vocabulary, hidden),
        nn.Dropout(dropout),
        nn.Linear(hidden, hidden),
        nn.GELU(),
        nn.Dropout(dropout),
        nn.Linear(hidden, 8),
    )


def batch(recipe: Recipe) -> torch.Tensor:
    return torch.randint(recipe.vocabulary, (24, recipe.length))


def pretrain(teacher: nn.Module, recipe: Recipe) -> None:
    """Teaches the teacher which tokens are even."""
    probe = nn.Linear(8, 1)
    opt = torch.optim.Adam([*teacher.parameters(), *probe.parameters()], lr=1e-2)
    for _ in range(recipe.warmup_steps):
        tokens = batch(recipe)
        logit = probe(teacher(tokens)).squeeze(-1)
        loss = nn.functional.binary_cross_entropy_with_logits(logit, (tokens % 2).float())
        opt.zero_grad()
        loss.backward()
        opt.step()


def train(healthy: bool = True, seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    recipe = Recipe(seed, size)
    torch.manual_seed(recipe.seed)
    teacher = encoder(recipe, 2 * recipe.width, dropout=0.3)
    pretrain(teacher, recipe)
    for p in teacher.parameters():
        p.requires_grad_(False)
    if healthy:
        teacher.eval()
    student = encoder(recipe, recipe.width, dropout=0.0)
    opt = torch.optim.Adam(student.parameters(), lr=1e-2)
    out: dict[str, list[float]] = {"loss": [], "wobble": []}
    for _ in range(recipe.steps):
        tokens = batch(recipe)
        with torch.no_grad():
            wanted, again = teacher(tokens), teacher(tokens)
        loss = nn.functional.mse_loss(student(tokens), wanted)
        opt.zero_grad()
        loss.backward()
        opt.step()
        out["loss"].append(loss.item())
        out["wobble"].append((wanted - again).abs().max().item())
    return out
