"""Transformers 17877 (TrainCheck's B13): parameters are initialised again and again.

https://github.com/huggingface/transformers/pull/17877, with transformers 4.20.1: GPT-2's
`_init_weights` is called for every module and gives the projections named `c_proj` their own
values.  TrainCheck describes the error so: parameters that are already initialised are not
distinguished from others.  Here each module initialises all weights below it whose names contain
"c_proj".  A projection lies below several modules, such as its block and the whole model, so each
of these modules initialises the projection once more.
"""

from __future__ import annotations

from collections import Counter

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pytest_trainsafe.reference_models.toolkit.pretrained import (
    PretrainedModel,
    ResidualProjection,
)
from pytest_trainsafe.reference_models.training.outcome import Outcome


class Block(nn.Module):
    """A perceptron in a residual stream."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.c_fc = nn.LayerNorm(width), nn.Linear(width, 2 * width)
        self.c_proj = ResidualProjection(2 * width, width)

    def forward(self, hidden: Tensor) -> Tensor:
        """The input plus the output of the perceptron."""
        added: Tensor = self.c_proj(F.gelu(self.c_fc(self.norm(hidden))))
        return hidden + added


class Model(PretrainedModel):
    """Blocks between an embedding and logits."""

    layers = 2

    def __init__(self, vocabulary: int, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.blocks = nn.Sequential(*(Block(width) for _ in range(self.layers)))
        self.head = nn.Linear(width, vocabulary)
        self.post_init()

    def forward(self, tokens: Tensor) -> Tensor:
        """The logits of every position's successor."""
        logits: Tensor = self.head(self.blocks(self.embedding(tokens)))
        return logits


class Repeating(Model):
    """A model with the error: it initialises the weights of `c_proj` more than once."""

    def is_residual_projection(self, name: str) -> bool:
        """Return whether `name` is a weight and contains "c_proj" anywhere."""
        return "c_proj" in name and "weight" in name


class _Counting:
    """Counts how often the initialisation of a model wrote each of its parameters.

    `fresh` is the same model without that initialisation.
    """

    def __init__(self, model: nn.Module, fresh: nn.Module) -> None:
        versions = {name: each._version for name, each in fresh.named_parameters()}
        self.writes = Counter(
            {name: each._version - versions[name] for name, each in model.named_parameters()}
        )


class _Uninitialised(Model):
    """The model without the initialisation of `PretrainedModel`."""

    def post_init(self) -> None:
        """Leave every parameter as its layer made it."""


def train(*, faulty: bool, seed: int = 0, steps: int = 4) -> Outcome:
    """Build the model and train it.

    In the Outcome, `facts["writes"]` maps each parameter's name to the number of times that it was
    initialised.
    """
    torch.manual_seed(seed)
    model = (Repeating if faulty else Model)(vocabulary=16, width=24)
    writes = dict(_Counting(model, _Uninitialised(vocabulary=16, width=24)).writes)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(steps):
        tokens = torch.randint(16, (8, 10))
        loss = F.cross_entropy(model(tokens).flatten(0, 1), ((tokens + 3) % 16).flatten())
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(loss.item())
    return Outcome(losses, {"writes": writes})
