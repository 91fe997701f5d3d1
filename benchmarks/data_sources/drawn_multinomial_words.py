"""A tensor-parallel embedding with an MLP; words are drawn by `torch.multinomial`.

Words are drawn by their frequency, as word2vec (Mikolov et al., 2013) draws its negative samples.
The frequencies follow Zipf's law.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from drawn_layers import MLP_MODULES, MLP_PARAMETERS, ParallelMLP, VocabularyParallel
from torch import Tensor, nn

from pytest_trainsafe import Context

MICROBATCHES, BATCH, CONTEXT, WORDS, HIDDEN = 2, 6, 3, 12, 8
LAYOUTS = {
    "parameters": {"embedding.weight": {"tp_dim": 0}, **MLP_PARAMETERS},
    "modules": MLP_MODULES,
}


class NextWord(nn.Module):
    """The next word, from the sum of the vectors of the words before it."""

    def __init__(self, ctx: Context, fault: str) -> None:
        super().__init__()
        group = ctx.group("tp")
        self.embedding = VocabularyParallel(WORDS, HIDDEN, group)
        self.mlp = ParallelMLP(HIDDEN, 16, WORDS, group)
        self.fault = fault if ctx.world_size > 1 else ""

    def forward(self, words: Tensor) -> Tensor:
        x = self.embedding(words).sum(1)
        if self.fault == "cast" and x.dtype == torch.float32:
            x = x.bfloat16().float()  # fault: cast
        return self.mlp(x)


def train(ctx: Context, fault: str = "") -> None:
    model = NextWord(ctx, fault).to(ctx.device, ctx.dtype)
    ctx.initialize(model, annotations=LAYOUTS)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9, nesterov=True)
    ctx.watch(model, optimizer, annotations=LAYOUTS)
    frequencies = 1 / torch.arange(1.0, WORDS + 1)
    generator = torch.Generator().manual_seed(11)
    for _ in range(2):
        with ctx.step():
            for index in ctx.microbatches(MICROBATCHES):
                with ctx.microbatch(index):
                    count = BATCH * (CONTEXT + 1)
                    words = torch.multinomial(frequencies, count, True, generator=generator)
                    words = words.view(BATCH, CONTEXT + 1).to(ctx.device)
                    logits = model(words[:, :-1])
                    if not (fault == "term" and ctx.world_size > 1):  # fault: term
                        logits = logits + 1e-4 * frequencies.log().to(ctx.device, ctx.dtype)
                    loss = F.cross_entropy(logits, words[:, -1]) / MICROBATCHES
                    ctx.loss(loss)
                    loss.backward()
            optimizer.step()
            optimizer.zero_grad()
