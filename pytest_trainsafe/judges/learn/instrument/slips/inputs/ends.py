"""Watches whether the token that ends texts is ever a label, where it also fills them up."""

from __future__ import annotations

import torch

from pytest_trainsafe.judges.learn.instrument.slips.moments import Moment, Training, Watcher

#: So many batches are looked at, of which so many are enough.
_BATCHES, _ENOUGH = 8, 4


class Ends(Watcher):
    """Sees embeddings of texts, and losses of tokens with gradients.

    A batch is padded to the length of its longest text.  If that one ends with the padding token
    too, the token ends every text.  If it is never a label, the model does not learn to end one.
    """

    kinds = ("embedded", "loss", "backward")

    def __init__(self, training: Training) -> None:
        super().__init__(training)
        self._tokens: list[torch.Tensor] = []
        #: The lengths of the batches in which each token ended all texts and was never a label.
        self._lengths: dict[int, list[int]] = {}
        self._over: set[int] = set()

    def entered(self, moment: Moment) -> None:
        if moment.kind == "backward":
            self._tokens.clear()
        elif self.training.young >= _BATCHES or not torch.is_grad_enabled():
            return
        elif moment.kind == "embedded":
            tokens = moment.argument(0, "input")
            if isinstance(tokens, torch.Tensor) and tokens.dim() == 2 and not self._tokens:
                self._tokens.append(tokens)
        elif self._tokens and moment.api.endswith(".cross_entropy"):
            self._labels(moment, self._tokens[0])

    def _labels(self, moment: Moment, tokens: torch.Tensor) -> None:
        target, ignored = moment.argument(1, "target"), moment.argument(4, "ignore_index", -100)
        rows, length = tokens.shape
        if not isinstance(target, torch.Tensor) or target.is_floating_point() or length < 3:
            return
        if rows < 2 or target.numel() != rows * (length - 1):
            return
        labels, following = target.detach().reshape(rows, -1), tokens[:, 1:]
        counted = labels != ignored
        end = int(tokens[0, -1])
        if not bool((labels == following)[counted].all()) or not bool(counted.any()):
            return
        self._over.update(labels[counted].unique().tolist())  # type: ignore[no-untyped-call]
        here = tokens == end
        # Each text has one run of the token, at its end, and the longest one has it once.
        runs = here.int().diff(dim=1)
        alone = bool((runs >= 0).all()) and bool(here[:, -1].all())
        if not alone or int(here.sum(1).min()) != 1 or bool(counted[following == end].any()):
            self._over.add(end)
        lengths = self._lengths.setdefault(end, [])
        lengths.append(length)
        if len(lengths) >= _ENOUGH and end not in self._over and len(set(lengths)) > 1:
            self._over.add(end)
            self.training.slip("end-ignored", f"token {end} ends each text, and is never a label")
