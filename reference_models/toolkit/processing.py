"""Processors: texts and images to the tensors that a model takes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

#: Ids that stand for no character.
PADDING, BEGIN = 0, 1


class Encoded(NamedTuple):
    """The ids of a batch of texts, padded, and which of them are not padding."""

    input_ids: Tensor
    attention_mask: Tensor


class Paired(NamedTuple):
    """The ids of a batch of texts and the image of each."""

    input_ids: Tensor
    pixel_values: Tensor


class TextProcessor:
    """Encodes texts character by character: "a" is 2, every text begins with `BEGIN`."""

    vocabulary = 30

    def __call__(self, texts: Sequence[str], max_length: int) -> Encoded:
        """As `process`."""
        return self.process(texts, max_length)

    def process(self, texts: Sequence[str], max_length: int) -> Encoded:
        """The first `max_length` ids of every text, padded to the longest."""
        rows = [self.encode(text)[:max_length] for text in texts]
        width = max(len(row) for row in rows)
        ids = torch.full((len(rows), width), PADDING)
        for number, row in enumerate(rows):
            ids[number, : len(row)] = torch.tensor(row)
        return Encoded(ids, ids.ne(PADDING))

    def encode(self, text: str) -> list[int]:
        """The ids of one text; characters other than letters and blanks are blanks."""
        return [BEGIN, *(ord(each) - 95 if "a" <= each <= "z" else 28 for each in text)]


class ImageTextProcessor:
    """Encodes pairs of a text and an image, both normalised."""

    def __init__(self) -> None:
        self.text = TextProcessor()

    def __call__(self, images: Tensor, texts: Sequence[str], max_length: int) -> Paired:
        """As `process`."""
        return self.process(images, texts, max_length)

    def process(self, images: Tensor, texts: Sequence[str], max_length: int) -> Paired:
        """One row of ids and one image for every pair; there are as many texts as images."""
        pairs = self.pair(images, texts)
        encoded = self.text([text for text, _ in pairs], max_length)
        pixels = torch.stack([(image - image.mean()) / (image.std() + 1e-6) for _, image in pairs])
        return Paired(encoded.input_ids, pixels)

    def pair(self, images: Tensor, texts: Sequence[str]) -> list[tuple[str, Tensor]]:
        """Every text with its image."""
        return list(zip(texts, images, strict=True))
