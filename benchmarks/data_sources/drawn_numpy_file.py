"""A tensor-parallel language model; its tokens are in a NumPy file that is mapped into memory.

Text that was turned into tokens once and is then read by `np.load(mmap_mode="r")` at random
offsets: this is how nanoGPT reads its data. Each rank writes a file of its own here.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from drawn_layers import MLP_MODULES, MLP_PARAMETERS, ParallelMLP, VocabularyParallel
from torch import Tensor, nn

from pytest_trainsafe import Context

MICROBATCHES, BATCH, LENGTH, WORDS, HIDDEN = 2, 3, 5, 16, 8
LAYOUTS = {
    "parameters": {"words.weight": {"tp_dim": 0}, **MLP_PARAMETERS},
    "modules": MLP_MODULES,
}


class Language(nn.Module):
    """The next word from this one, and the mean of all words until here."""

    def __init__(self, ctx: Context, fault: str) -> None:
        super().__init__()
        group = ctx.group("tp")
        self.words = VocabularyParallel(WORDS, HIDDEN, group)
        self.norm = nn.LayerNorm(HIDDEN)
        self.mlp = ParallelMLP(HIDDEN, 16, HIDDEN, group)
        self.head = nn.Linear(HIDDEN, WORDS)
        self.fault = fault if ctx.world_size > 1 else ""

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens)
        if self.fault == "cast" and x.dtype == torch.float32:
            x = x.bfloat16().float()  # fault: cast
        counts = torch.arange(1, LENGTH + 1, device=x.device).to(x.dtype)[:, None]
        x = x + x.cumsum(1) / counts
        y = self.mlp(self.norm(x))
        if self.fault != "term":  # fault: term
            y = y + 1e-4 * x
        return self.head(y)


def train(ctx: Context, fault: str = "") -> None:
    model = Language(ctx, fault).to(ctx.device, ctx.dtype)
    ctx.initialize(model, annotations=LAYOUTS)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    ctx.watch(model, optimizer, annotations=LAYOUTS)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "tokens.npy")
        np.save(path, np.random.default_rng(1).integers(0, WORDS, 200, dtype=np.uint16))
        tokens = np.load(path, mmap_mode="r")
        offsets = torch.Generator().manual_seed(2)
        for _ in range(2):
            with ctx.step():
                for index in ctx.microbatches(MICROBATCHES):
                    with ctx.microbatch(index):
                        starts = torch.randint(len(tokens) - LENGTH, (BATCH,), generator=offsets)
                        rows = [tokens[start : start + LENGTH + 1] for start in starts.tolist()]
                        batch = torch.from_numpy(np.stack(rows).astype(np.int64)).to(ctx.device)
                        logits = model(batch[:, :-1])
                        loss = F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
                        loss = loss / MICROBATCHES
                        ctx.loss(loss)
                        loss.backward()
                optimizer.step()
                optimizer.zero_grad()
