"""A token that ends texts and pads them, and is never a label, is noticed."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.support.learn.slips import sgd, slips_of


class Writer(nn.Module):
    """A language model of one layer, which shifts the labels itself."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.cell = nn.Embedding(12, 6), nn.GRU(6, 6, batch_first=True)
        self.head = nn.Linear(6, 12)

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        scores = self.head(self.cell(self.embed(ids))[0][:, :-1])
        return F.cross_entropy(scores.flatten(0, 1), labels[:, 1:].flatten())


def texts(width: int, kind: str) -> tuple[Tensor, Tensor]:
    """Texts of random lengths, the last of which fills the batch, with their labels."""
    lengths = [int(torch.randint(4, width, ())) for _ in range(5)] + [width]
    ids = torch.zeros(6, width, dtype=torch.long)
    labels = torch.full_like(ids, -100)
    for row, length in enumerate(lengths):
        ids[row, :length] = torch.randint(1, 12, (length,))
        if kind in ("ends ignored", "ends learned"):
            ids[row, length - 1] = 0
        labels[row, :length] = ids[row, :length]
    if kind == "ends ignored":
        labels[ids == 0] = -100
    return ids, labels


@pytest.mark.parametrize(
    ("kind", "widths", "slips"),
    [
        ("ends ignored", (9, 8, 9, 7, 9, 8), ["end-ignored"]),
        ("ends learned", (9, 8, 9, 7, 9, 8), []),
        ("no ends", (9, 8, 9, 7, 9, 8), []),
        # Texts that are filled up to one length say nothing of it.
        ("ends ignored", (9, 9, 9, 9, 9, 9), []),
    ],
)
def test_the_token_that_ends_texts(kind: str, widths: tuple[int, ...], slips: list[str]) -> None:
    def program() -> None:
        model = Writer()
        optimizer = sgd(model)
        for width in widths:
            optimizer.zero_grad()
            model(*texts(width, kind)).backward()
            optimizer.step()

    assert slips_of(program) == slips
