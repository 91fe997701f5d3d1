"""Slips in padding and masks are noticed, and not in models that do without."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.support.learn.slips import sgd, slips_of

PAD, ROWS, LENGTH, WORDS, WIDTH = 0, 6, 8, 20, 8


def texts(kind: str) -> Tensor:
    tokens = torch.randint(2, WORDS, (ROWS, LENGTH))
    if kind == "begins twice":
        tokens[:, :2] = 1
        tokens[:, 2] = 5
    elif kind == "begins once":
        tokens[:, 0] = 1
    else:
        tokens[1, 5:], tokens[2, 6:] = PAD, PAD
    return tokens


class Reader(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.table = nn.Embedding(WORDS, WIDTH, padding_idx=PAD)
        self.attend = nn.MultiheadAttention(WIDTH, 2, batch_first=True)
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, tokens: Tensor) -> Tensor:
        x, padded = self.table(tokens), tokens == PAD
        future = torch.ones(LENGTH, LENGTH).triu(1)
        if self.kind == "causal":
            x = x + self.attend(x, x, x, attn_mask=future.bool(), is_causal=True)[0]
        elif self.kind == "numbers":
            x = x + self.attend(x, x, x, attn_mask=future, key_padding_mask=padded.float())[0]
        elif self.kind == "added":
            hidden = future.masked_fill(future.bool(), -torch.inf)
            x = x + self.attend(x, x, x, attn_mask=hidden)[0]
        else:
            x = (
                x
                + self.attend(x, x, x, key_padding_mask=padded if self.kind == "hidden" else None)[
                    0
                ]
            )
        found: Tensor = self.head(x)
        return found


@pytest.mark.parametrize(
    ("kind", "text", "ignored", "slips"),
    [
        ("plain", "padded", PAD, ["padding-unmasked"]),
        ("hidden", "padded", PAD, []),
        ("causal", "padded", PAD, []),
        ("causal", "padded", -100, ["padding-learned"]),
        ("numbers", "padded", PAD, ["mask-of-numbers"]),
        ("added", "padded", PAD, []),
        ("causal", "begins twice", PAD, ["begin-doubled"]),
        ("causal", "begins once", PAD, []),
    ],
)
def test_padding_and_masks(kind: str, text: str, ignored: int, slips: list[str]) -> None:
    def program() -> None:
        model = Reader(kind)
        optimizer = sgd(model)
        for _ in range(2):
            tokens = texts(text)
            optimizer.zero_grad()
            scores = model(tokens)
            labels = tokens[:, 1:].reshape(-1)
            F.cross_entropy(
                scores[:, :-1].reshape(-1, WORDS), labels, ignore_index=ignored
            ).backward()
            optimizer.step()

    own = ("padding-unmasked", "padding-learned", "mask-of-numbers", "begin-doubled")
    assert [each for each in slips_of(program) if each in own] == slips


@pytest.mark.parametrize(
    ("filler", "padding", "wrong"), [(1, 0, True), (0, 0, False), (1, None, False)]
)
def test_texts_are_filled_up_with_the_padding(
    filler: int, padding: int | None, wrong: bool
) -> None:
    def program() -> None:
        table, head = nn.Embedding(9, 4, padding_idx=padding), nn.Linear(4, 2)
        optimizer = sgd(nn.ModuleList([table, head]))
        for _ in range(2):
            tokens = torch.randint(2, 9, (6, 8))
            for row, length in enumerate((8, 6, 5, 4, 6, 3)):
                tokens[row, length:] = filler
            read = (tokens != filler)[..., None]
            optimizer.zero_grad()
            head((table(tokens) * read).sum(1)).square().mean().backward()
            optimizer.step()

    assert slips_of(program) == ["padding-elsewhere"] * wrong
