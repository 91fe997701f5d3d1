"""Watches padding: what attention and losses do with it, and how texts begin."""

from __future__ import annotations

from typing import NamedTuple

import torch

from pytest_trainsafe.judges.learn.instrument.slips.inputs.tokens import shifts
from pytest_trainsafe.judges.learn.instrument.slips.moments import Moment, Training, Watcher

#: Tokens and masks are looked at in so many rounds.
_ROUNDS = 3
#: The most embeddings that are remembered until a backward.
_MANY = 16
#: In fewer sequences, or in shorter ones, two equal tokens may be there by chance.
_ROWS, _LENGTH = 4, 6


class _Text(NamedTuple):
    """What an embedding got, and the index of its padding."""

    tokens: torch.Tensor
    padding: int | None


class Masks(Watcher):
    """Sees embeddings, attention and losses with gradients, until a backward."""

    kinds = ("embedded", "attended", "dropout", "loss", "backward")

    def __init__(self, training: Training) -> None:
        super().__init__(training)
        self._texts: list[_Text] = []

    def entered(self, moment: Moment) -> None:
        if moment.kind == "backward":
            self._texts.clear()
        elif self.training.young >= _ROUNDS or not torch.is_grad_enabled():
            return
        elif moment.kind == "embedded":
            tokens, padding = moment.argument(0, "input"), moment.argument(2, "padding_idx")
            if isinstance(tokens, torch.Tensor) and tokens.dim() == 2:
                self._texts = [*self._texts[1 - _MANY :], _Text(tokens, padding)]
                self._begins(tokens, padding)
                self._fills(tokens, padding)
        elif moment.kind == "loss":
            if moment.api.endswith(".cross_entropy"):
                self._labels(moment)
        elif moment.kind == "attended":
            mask, hides = moment.argument(16, "attn_mask"), moment.argument(14, "key_padding_mask")
            self._numbers(mask)
            self._numbers(hides)
            if mask is None and hides is None and not moment.kwargs.get("is_causal", False):
                self._attends(moment, 0)
        elif moment.api.endswith("scaled_dot_product_attention") and not moment.inside("attended"):
            mask = moment.argument(3, "attn_mask")
            self._numbers(mask)
            if mask is None and not moment.argument(5, "is_causal", False):
                self._attends(moment, -2)

    def _begins(self, tokens: torch.Tensor, padding: int | None) -> None:
        if tokens.shape[0] < _ROWS or tokens.shape[1] < _LENGTH:
            return
        first = tokens[:, :3]
        begin = first[0, 0]
        twice = bool((first[:, :2] == begin).all()) and bool((first[:, 2] != begin).all())
        if twice and int(begin) != padding:
            self.training.slip("begin-doubled", f"all texts begin with {int(begin)} twice")

    def _fills(self, tokens: torch.Tensor, padding: int | None) -> None:
        """Whether texts of different lengths are filled up with another token than the padding."""
        if padding is None or tokens.shape[0] < _ROWS or tokens.shape[1] < _LENGTH:
            return
        last = int(tokens[:, -1].mode().values)
        filled = (tokens == last).flip(1).long().cumprod(1).sum(1)
        lengths = filled[filled > 1]
        many = 2 * len(lengths) >= len(tokens) and torch.unique(lengths).numel() > 1
        if many and last != padding and not bool((tokens == padding).any()):
            self.training.slip("padding-elsewhere", f"texts end with {last}, and it is {padding}")

    def _numbers(self, mask: object) -> None:
        if not isinstance(mask, torch.Tensor) or not mask.is_floating_point():
            return
        values = mask.detach()
        ones = values == 1
        if bool(((values == 0) | ones).all()) and bool(ones.any()) and not bool(ones.all()):
            self.training.slip("mask-of-numbers", f"a mask of {values.dtype} has only 0 and 1")

    def _attends(self, moment: Moment, at: int) -> None:
        query, key = moment.argument(0, "query"), moment.argument(1, "key")
        if not isinstance(query, torch.Tensor) or not isinstance(key, torch.Tensor):
            return
        length = query.shape[at]
        for text in self._texts:
            if text.padding is None or length != key.shape[at] or length != text.tokens.shape[1]:
                continue
            ends = (text.tokens[:, [0, -1]] == text.padding).any(1)
            if bool(ends.any()) and not bool(ends.all()):
                self.training.slip(
                    "padding-unmasked", f"{int(ends.sum())} of {len(ends)} texts are padded"
                )
                return

    def _labels(self, moment: Moment) -> None:
        target, ignored = moment.argument(1, "target"), moment.argument(4, "ignore_index", -100)
        reduced = moment.argument(6, "reduction", "mean") != "none"
        if not isinstance(target, torch.Tensor) or target.is_floating_point() or not reduced:
            return
        if moment.argument(2, "weight") is not None:
            return
        for text in self._texts:
            if text.padding in (None, ignored) or not shifts(target, text.tokens, ignored):
                continue
            padded = target.reshape(text.tokens.shape[0], -1) == text.padding
            # The token that ends a text may be the one that pads it.
            many = (padded[:, 1:] & padded[:, :-1]).any(1)
            if bool(many.any()) and not bool(padded.all()):
                self.training.slip(
                    "padding-learned", f"{int(padded.sum())} of {padded.numel()} labels are padding"
                )
                return
