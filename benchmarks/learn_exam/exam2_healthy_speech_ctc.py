"""A recogniser of spoken digits strings with CTC over frames of unequal number."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence

BLANK = 0


class Recogniser(nn.Module):
    def __init__(self, features: int, symbols: int, width: int) -> None:
        super().__init__()
        self.convolve = nn.Conv1d(features, width, 3, stride=2, padding=1)
        self.recur = nn.GRU(width, width, batch_first=True, bidirectional=True)
        self.score = nn.Linear(2 * width, symbols)

    def forward(self, frames: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        hidden = torch.relu(self.convolve(frames.transpose(1, 2))).transpose(1, 2)
        lengths = (lengths - 1) // 2 + 1
        packed = pack_padded_sequence(hidden, lengths, batch_first=True, enforce_sorted=False)
        hidden, _ = pad_packed_sequence(self.recur(packed)[0], batch_first=True)
        return self.score(hidden).log_softmax(-1).transpose(0, 1), lengths


def utterance(sounds: Tensor) -> tuple[Tensor, Tensor]:
    text = torch.randint(1, len(sounds), (int(torch.randint(1, 4, ())),))
    frames = sounds[text].repeat_interleave(6, dim=0)
    return frames + 0.2 * torch.randn_like(frames), text


def train(seed: int = 0, size: int = 16) -> dict[str, list[float]]:
    torch.manual_seed(seed)
    sounds = torch.randn(6, 8)
    model = Recogniser(8, 6, size)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-2)
    losses = []
    for _ in range(24):
        heard, written = zip(*(utterance(sounds) for _ in range(12)), strict=True)
        lengths = torch.tensor([len(frames) for frames in heard])
        scores, lengths = model(pad_sequence(list(heard), batch_first=True), lengths)
        loss = nn.functional.ctc_loss(
            scores, torch.cat(written), lengths, torch.tensor([len(text) for text in written]),
            blank=BLANK, zero_infinity=True,
        )  # fmt: skip
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        losses.append(loss.item())
    return {"loss": losses}
