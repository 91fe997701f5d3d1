"""A program whose sequences have unequal lengths, with what relations act through."""

import torch
import torch.nn.functional as F
from torch import nn

from pytest_trainsafe import relations

LENGTH, VOCABULARY = 6, 11


class Model(nn.Module):
    """The logits of each token, from the mean of the real tokens of its sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 8)
        self.output = nn.Linear(8, VOCABULARY)

    def forward(self, tokens, mask):
        words = self.embedding(tokens) * mask[..., None]
        mean = words.sum(1, keepdim=True) / mask.sum(1)[:, None, None]
        return self.output((words + mean).tanh())


def batch(number, size, padding):
    """The tokens of micro-batch `number`, and which of them are real."""
    samples = torch.arange(number * size, (number + 1) * size)[:, None]
    tokens = (samples * 5 + torch.arange(LENGTH) * 3) % VOCABULARY
    mask = torch.arange(LENGTH) < LENGTH - samples % 3
    return F.pad(tokens * mask, (0, padding)), F.pad(mask, (0, padding))


@relations.hold(
    relations.Split(batch="batch_size", count="microbatches", loss="sum"),
    relations.Order(),
    relations.Padding(argument="padding", length="length"),
    relations.LossScale(argument="loss_scale"),
)
def train(
    ctx,
    batch_size=2,
    microbatches=2,
    length=LENGTH,
    padding=0,
    loss_scale=1.0,
    per_microbatch=False,
):
    """Train for one step; `per_microbatch` plants a fault."""
    model = Model().to(ctx.dtype)
    ctx.initialize(model)
    optimizer = torch.optim.AdamW(model.parameters())
    ctx.watch(model, optimizer)
    with ctx.step():
        every = [batch(number, batch_size, padding) for number in range(microbatches)]
        total = sum(int(mask.sum()) for _, mask in every)  # the tokens of the whole step
        for index in ctx.microbatches(microbatches):
            tokens, mask = every[index]
            with ctx.microbatch(index):
                losses = F.cross_entropy(
                    model(tokens, mask).transpose(1, 2), tokens, reduction="none"
                )
                tokens_counted = int(mask.sum()) * microbatches if per_microbatch else total
                loss = (losses * mask).sum() / tokens_counted
                ctx.loss(loss.detach())
                (loss * loss_scale).backward()
        for parameter in model.parameters():
            parameter.grad /= loss_scale
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        optimizer.zero_grad()
