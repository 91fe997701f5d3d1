"""Losses per token, where micro-batches and ranks have unequal numbers of valid tokens.

Bugs, by the argument `bug`:

- "mean_of_means": each micro-batch's mean is averaged over micro-batches (scaling;
  huggingface/transformers pull request 34191, meta-pytorch/torchtune pull request 1875).
- "rank_tokens": a rank divides by the tokens of its own micro-batches, and gradients are averaged
  over dp (scaling; huggingface/transformers pull request 34373, issue 37474).
- "not_divided": the sum of gradients over micro-batches is not divided (scaling;
  verl-project/verl pull request 3332).
- "last_only": only the gradient of the last micro-batch survives (scheduling;
  NVIDIA-NeMo/Automodel pull request 3530).
- "tokens_late": the number of valid tokens is counted before the mask of padding is applied
  (scaling).
- "weighted_twice": the sum over dp is divided by dp again (scaling; pytorch/torchtitan issue 2318
  has a factor of the number of ranks).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from pytest_trainsafe import divides, requires

VOCABULARY, LENGTH, BATCH, IGNORED = 7, 5, 2, -100


class Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, 4)
        self.mix = nn.Conv1d(4, 4, 3, padding=1)
        self.head = nn.Linear(4, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        return self.head(x + self.mix(x.transpose(1, 2)).transpose(1, 2).tanh())


def _batch(step: int, index: int) -> tuple[Tensor, Tensor]:
    """Tokens and tags; a micro-batch with a greater number has more padding."""
    generator = torch.Generator().manual_seed(50 * step + index)
    tokens = torch.randint(VOCABULARY, (BATCH, LENGTH), generator=generator)
    tags = torch.randint(VOCABULARY, (BATCH, LENGTH), generator=generator)
    lengths = torch.tensor([LENGTH, LENGTH - index])
    tags[torch.arange(LENGTH) >= lengths[:, None]] = IGNORED
    return tokens, tags


def _tokens(ctx: Any, step: int, mine: Any, bug: str) -> Tensor:
    """The number of valid tokens of a step."""
    batches = [_batch(step, index)[1] for index in mine]
    if bug == "tokens_late":
        count = torch.tensor(sum(tags.numel() for tags in batches))
    else:
        count = sum((tags != IGNORED).sum() for tags in batches)
    if bug != "rank_tokens":
        dist.all_reduce(count, group=ctx.group("dp"))
    return count


@requires(divides("count", "dp"))
def train(ctx: Any, count: int = 4, bug: str = "") -> None:
    model = Tagger().to(ctx.device, ctx.dtype)
    ctx.initialize(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    ctx.watch(model, optimizer)
    ranks = ctx.point.size("dp")
    for step in range(2):
        with ctx.step():
            mine = ctx.microbatches(count)
            tokens = _tokens(ctx, step, mine, bug)
            for index in mine:
                with ctx.microbatch(index):
                    inputs, tags = (each.to(ctx.device) for each in _batch(step, index))
                    logits = model(inputs).flatten(0, 1)
                    if bug == "mean_of_means":
                        loss = F.cross_entropy(logits, tags.flatten(), ignore_index=IGNORED) / count
                    else:
                        kwargs: Any = {"ignore_index": IGNORED, "reduction": "sum"}
                        loss = F.cross_entropy(logits, tags.flatten(), **kwargs)
                        if bug != "not_divided":
                            loss = loss / tokens
                    ctx.loss(loss)
                    if bug == "last_only":
                        model.zero_grad()
                    loss.backward()
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad, group=ctx.group("dp"))
                if bug in ("rank_tokens", "weighted_twice"):
                    parameter.grad /= ranks
            optimizer.step()
            optimizer.zero_grad()
