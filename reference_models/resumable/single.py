"""Programs that train networks of different kinds on one device."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset

from pytest_trainsafe.reference_models.healthy.images.residual import Block
from pytest_trainsafe.reference_models.resumable import STEPS
from pytest_trainsafe.reference_models.resumable.training import Data, train

if TYPE_CHECKING:
    from pytest_trainsafe.record.context import Context


def mlp(ctx: Context, steps: int = STEPS, width: int = 16) -> None:
    """Train a regression with dropout, on batches from torch's default random generator."""
    torch.manual_seed(ctx.seed)
    hidden = [nn.Linear(8, width), nn.ReLU(), nn.Dropout(0.3), nn.Linear(width, width), nn.ReLU()]
    model = nn.Sequential(*hidden, nn.Dropout(0.3), nn.Linear(width, 1)).to(ctx.dtype)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)

    def step() -> None:
        x = torch.randn(12, 8, dtype=ctx.dtype)
        with ctx.microbatch(0):
            loss = F.mse_loss(model(x), x.sin().sum(1, keepdim=True))
            ctx.loss(loss)
            loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()

    train(ctx, model, optimizer, step, steps)


class Pictures(Dataset[tuple[Tensor, int]]):
    """Pictures of a vertical or a horizontal bar, with random augmentation.

    Three generators are used: torch's for the shift, Python's for mirroring, NumPy's for noise.
    """

    def __len__(self) -> int:
        return 18

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        picture = torch.zeros(1, 8, 8)
        picture[0, :, index % 8] = 1.0
        picture = picture.transpose(1, 2) if index % 2 else picture
        picture = picture.roll(int(torch.randint(8, ())), dims=1 + index % 2)
        if random.random() < 0.5:
            picture = picture.flip(2)
        noise = np.random.standard_normal(64).astype(np.float32)
        return picture + 0.1 * torch.from_numpy(noise).reshape(1, 8, 8), index % 2


def cnn(ctx: Context, steps: int = STEPS, channels: int = 4) -> None:
    """Classify `Pictures` as vertical or horizontal; each epoch shuffles them."""
    torch.manual_seed(ctx.seed)
    random.seed(ctx.seed)
    np.random.seed(ctx.seed)
    model = nn.Sequential(
        nn.Conv2d(1, channels, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()
    )
    model.extend([nn.Dropout(0.1), nn.Linear(16 * channels, 2)])
    model = model.to(ctx.dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    shuffling = torch.Generator()
    loader = DataLoader(Pictures(), batch_size=6, shuffle=True, generator=shuffling)

    def open_epoch(epoch: int) -> Any:
        shuffling.manual_seed(ctx.seed + epoch)
        return iter(loader)

    data = Data(open_epoch)

    def step() -> None:
        pictures, kinds = data.next()
        with ctx.microbatch(0):
            loss = F.cross_entropy(model(pictures.to(ctx.dtype)), kinds)
            ctx.loss(loss)
            loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()

    generators = {"shuffling": shuffling}
    train(ctx, model, optimizer, step, steps, per_rank={"data": data}, generators=generators)


def resnet(ctx: Context, steps: int = STEPS, depth: int = 2) -> None:
    """Classify textures, with batch normalisation and a learning-rate schedule."""
    torch.manual_seed(ctx.seed)
    stem = nn.Conv2d(3, 8, 3, padding=1)
    blocks = [Block(8) for _ in range(depth)]
    model = nn.Sequential(stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4))
    model = model.to(ctx.dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=STEPS)
    textures = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(ctx.seed))

    def step() -> None:
        kinds = torch.randint(4, (8,))
        images = (textures[kinds] + 0.5 * torch.randn(8, 3, 8, 8)).to(ctx.dtype)
        with ctx.microbatch(0):
            loss = F.cross_entropy(model(images), kinds)
            ctx.loss(loss)
            loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()

    train(ctx, model, optimizer, step, steps, shared={"schedule": schedule})


class Recurrent(nn.Module):
    """Predicts the next token from a state that an LSTM of two layers keeps."""

    def __init__(self, tokens: int, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(tokens, width)
        self.lstm = nn.LSTM(width, width, num_layers=2, dropout=0.2, batch_first=True)
        self.output = nn.Linear(width, tokens)

    def forward(self, tokens: Tensor) -> Tensor:
        """Scores of the next token, [batch, length, tokens]."""
        scores: Tensor = self.output(self.lstm(self.embedding(tokens))[0])
        return scores


def lstm(ctx: Context, steps: int = STEPS, width: int = 12) -> None:
    """Continue sequences that count upwards by a random stride."""
    torch.manual_seed(ctx.seed)
    model = Recurrent(11, width).to(ctx.dtype)
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)

    def step() -> None:
        start, stride = torch.randint(11, (4, 1)), torch.randint(1, 4, (4, 1))
        tokens = (start + stride * torch.arange(9)) % 11
        with ctx.microbatch(0):
            loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
            ctx.loss(loss)
            loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    train(ctx, model, optimizer, step, steps)


class Decoder(nn.Module):
    """A causal transformer with dropout; `recompute` recomputes its layers in the backward."""

    def __init__(self, tokens: int, width: int, layers: int, recompute: bool) -> None:
        super().__init__()
        self.embedding, self.output = nn.Embedding(tokens, width), nn.Linear(width, tokens)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 2, 2 * width, dropout=0.1, batch_first=True)
            for _ in range(layers)
        )
        self.recompute = recompute

    def forward(self, tokens: Tensor) -> Tensor:
        """Scores of the next token, [batch, length, tokens]."""
        x = self.embedding(tokens)
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1], dtype=x.dtype)
        for layer in self.layers:
            x = (
                checkpoint(layer, x, mask, use_reentrant=False)
                if self.recompute
                else layer(x, mask)
            )
        scores: Tensor = self.output(x)
        return scores


def gpt(
    ctx: Context,
    steps: int = STEPS,
    width: int = 16,
    layers: int = 2,
    microbatches: int = 1,
    recompute: bool = False,
) -> None:
    """Continue sequences with a transformer; gradients of micro-batches are accumulated."""
    torch.manual_seed(ctx.seed)
    model = Decoder(13, width, layers, recompute).to(ctx.dtype)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 4))

    def step() -> None:
        for index in range(microbatches):
            start, stride = torch.randint(13, (4, 1)), torch.randint(1, 4, (4, 1))
            tokens = (start + stride * torch.arange(9)) % 13
            with ctx.microbatch(index):
                scores = model(tokens[:, :-1]).flatten(0, 1)
                loss = F.cross_entropy(scores, tokens[:, 1:].flatten()) / microbatches
                ctx.loss(loss)
                loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()

    train(ctx, model, optimizer, step, steps, shared={"schedule": schedule})
