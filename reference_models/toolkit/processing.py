"""Processors that turn texts and images into the tensors that a model takes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

#: Ids that do not stand for a character.
PADDING, BEGIN = 0, 1


class Encoded(NamedTuple):
    """The padded ids of a batch of texts, and a mask that is True for ids that are not padding."""

    input_ids: Tensor
    attention_mask: Tensor


class Paired(NamedTuple):
    """The ids of a batch of texts, and the image of each text."""

    input_ids: Tensor
    pixel_values: Tensor


class TextProcessor:
    """Encodes texts character by character.  "a" has the id 2; every text begins with `BEGIN`."""

    vocabulary = 30

    def __call__(self, texts: Sequence[str], max_length: int) -> Encoded:
        """Call `process`."""
        return self.process(texts, max_length)

    def process(self, texts: Sequence[str], max_length: int) -> Encoded:
        """Return the first `max_length` ids of every text, padded to the longest."""
        rows = [self.encode(text)[:max_length] for text in texts]
        width = max(len(row) for row in rows)
        ids = torch.full((len(rows), width), PADDING)
        for number, row in enumerate(rows):
            ids[number, : len(row)] = torch.tensor(row)
        return Encoded(ids, ids.ne(PADDING))

    def encode(self, text: str) -> list[int]:
        """Return the ids of one text; all characters but a to z are encoded as blanks."""
        return [BEGIN, *(ord(each) - 95 if "a" <= each <= "z" else 28 for each in text)]


class ImageTextProcessor:
    """Encodes pairs of a text and an image; images are normalised."""

    def __init__(self) -> None:
        self.text = TextProcessor()

    def __call__(self, images: Tensor, texts: Sequence[str], max_length: int) -> Paired:
        """Call `process`."""
        return self.process(images, texts, max_length)

    def process(self, images: Tensor, texts: Sequence[str], max_length: int) -> Paired:
        """Return a row of ids and an image for every pair of a text and an image."""
        pairs = self.pair(images, texts)
        encoded = self.text([text for text, _ in pairs], max_length)
        pixels = torch.stack([(image - image.mean()) / (image.std() + 1e-6) for _, image in pairs])
        return Paired(encoded.input_ids, pixels)

    def pair(self, images: Tensor, texts: Sequence[str]) -> list[tuple[str, Tensor]]:
        """Return pairs of a text and its image."""
        return list(zip(texts, images, strict=True))
