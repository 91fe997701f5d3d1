"""Watches sequences: the labels of tokens, masks of padding, and which dimension is the batch."""

from __future__ import annotations

import torch
from torch import nn

from pytest_trainsafe.judges.learn.instrument.slips.inputs.influence import Influence
from pytest_trainsafe.judges.learn.instrument.slips.moments import Moment, Training, Watcher

#: Tokens and masks are looked at in so many rounds.
_ROUNDS = 3
#: The most embeddings and modules of sequences that are remembered until a backward.
_MANY = 16
#: What is added to a score that is hidden is less.
_HIDDEN = -1e4
#: Fewer labels may be equal to tokens by chance.
_LABELS = 8


class Tokens(Watcher):
    """Sees embeddings, attention, modules of sequences, and losses with gradients."""

    kinds = ("embedded", "attended", "dropout", "module", "loss", "backward")

    def __init__(self, training: Training, influence: Influence) -> None:
        super().__init__(training)
        self._influence = influence
        #: What the influence of later tokens on the first logits shows of each loss.
        self._found: set[bool] = set()
        #: The tokens that embeddings got since the last backward.
        self._tokens: list[torch.Tensor] = []
        #: The first two sizes of what modules got that expect the batch second, and their names.
        self._second: list[tuple[int, int, str]] = []
        #: The recurrent modules that ran since the last backward.
        self._recurrent: set[int] = set()
        self._both_ways = False
        #: By how many positions labels are later than the tokens, for each loss.
        self._later: set[int] = set()
        #: The length of each attention of a sequence to itself, and whether it sees the future.
        self._ahead: list[tuple[int, bool]] = []

    def entered(self, moment: Moment) -> None:
        if moment.kind == "backward":
            if moment.outermost:
                self._judge()
            return
        if self.training.young >= _ROUNDS or not torch.is_grad_enabled():
            return
        if moment.kind == "module":
            self._sequence(moment)
        elif moment.kind == "embedded":
            tokens = moment.argument(0, "input")
            if isinstance(tokens, torch.Tensor) and tokens.dim() == 2 and tokens.shape[1] > 1:
                self._tokens = [*self._tokens[1 - _MANY :], tokens]
        elif moment.kind == "loss":
            target = moment.argument(1, "target")
            if isinstance(target, torch.Tensor):
                self._loss(moment, target)
        elif moment.kind == "attended":
            self._masked(moment.argument(14, "key_padding_mask"), hides=True)
            mask, causal = moment.argument(16, "attn_mask"), moment.kwargs.get("is_causal", False)
            self._looks(moment, 0, mask, hides=True, causal=bool(causal) and mask is None)
        elif moment.api.endswith("scaled_dot_product_attention") and not moment.inside("attended"):
            mask = moment.argument(3, "attn_mask")
            causal = moment.argument(5, "is_causal", False)
            self._looks(moment, -2, mask, hides=False, causal=bool(causal))
            if isinstance(mask, torch.Tensor) and mask.dim() == 4:
                self._masked(mask[:, 0, -1], hides=False)

    def _sequence(self, moment: Moment) -> None:
        module = moment.thing
        if isinstance(module, nn.RNNBase):
            self._recurrent.add(id(module))
            self._both_ways |= module.bidirectional
        if not isinstance(module, nn.RNNBase | nn.MultiheadAttention) or module.batch_first:
            return
        attends = isinstance(module, nn.MultiheadAttention)
        given = moment.argument(0, "query" if attends else "input")
        if isinstance(given, torch.Tensor) and given.dim() == 3 and len(self._second) < _MANY:
            self._second.append((given.shape[0], given.shape[1], type(module).__name__))

    def _looks(self, moment: Moment, at: int, mask: object, *, hides: bool, causal: bool) -> None:
        """Whether the first position of a sequence sees the last; sizes are at `at`."""
        query, key = moment.argument(0, "query"), moment.argument(1, "key")
        if not isinstance(query, torch.Tensor) or not isinstance(key, torch.Tensor):
            return
        length = query.shape[at]
        if query.dim() < 3 or length != key.shape[at] or length < 2 or len(self._ahead) >= _MANY:
            return
        ahead = not causal
        if isinstance(mask, torch.Tensor):
            corner = mask.detach()[..., 0, -1]
            if corner.is_floating_point():
                corner = corner > _HIDDEN
            elif hides:
                corner = ~corner
            ahead = bool(corner.any())
        self._ahead.append((length, ahead))

    def _loss(self, moment: Moment, target: torch.Tensor) -> None:
        alone = target.dim() == 1 or (target.dim() == 2 and target.shape[1] == 1)
        if alone:
            for first, second, name in self._second:
                if target.shape[0] == first != second > 1:
                    self.training.slip(
                        "batch-as-time",
                        f"{name} takes the {first} examples of the loss for positions",
                    )
                    return
        if moment.api.endswith(".cross_entropy") and not target.is_floating_point():
            ignored = moment.argument(4, "ignore_index", -100)
            results: list[tuple[torch.Tensor, list[int], bool | None]] = []
            for tokens in self._tokens:
                found = shifts(target, tokens, ignored)
                self._later.update(found)
                if found:
                    logits = moment.argument(0, "input")
                    sees = self._influence.sees_later(tokens, logits, target)
                    results.append((tokens, found, sees))
            self._found.update(sees for *_, sees in results if sees is not None)
            self._looks_ahead([(each, sees) for each, found, sees in results if _are_next(found)])

    def _looks_ahead(self, texts: list[tuple[torch.Tensor, bool | None]]) -> None:
        """Whether the logits of a position depend on the token that is its label.

        An encoder may read what a decoder is to write, by another embedding or other modules.
        """
        known = [sees for _, sees in texts if sees is not None]
        several = len(self._recurrent) > 1 or len({ahead for _, ahead in self._ahead}) > 1
        if known:
            if all(known) and not several:
                self.training.slip("future-seen", "the first logits depend on later tokens")
            return
        lengths = [length for length, _ in self._ahead]
        ahead = all(each for _, each in self._ahead)
        if ahead and any(tokens.shape[1] in lengths for tokens, _ in texts):
            self.training.slip(
                "future-seen", f"all of {len(lengths)} attentions see the next tokens"
            )

    def _judge(self) -> None:
        later = self._later
        if not self._is_causal():
            later = later - {0}  # as an encoder that restores what it reads
        if later and 1 not in later:
            what = "the tokens themselves" if 0 in later else "two positions later"
            self.training.slip("labels-shifted", f"the labels are {what}")
        self._later, self._tokens, self._second, self._ahead = set(), [], [], []
        self._recurrent, self._found, self._both_ways = set(), set(), False

    def _is_causal(self) -> bool:
        """Whether it is known that no logits depend on later tokens."""
        if self._found:
            return True not in self._found
        # Several recurrent modules may be an encoder and a decoder.
        if self._both_ways or any(ahead for _, ahead in self._ahead):
            return False
        return len(self._recurrent) == 1 or (bool(self._ahead) and not self._recurrent)

    def _masked(self, mask: object, *, hides: bool) -> None:
        """Whether attention sees one token only, and another ones are hidden from it."""
        if not isinstance(mask, torch.Tensor) or mask.dim() != 2:
            return
        hidden = mask.detach()
        if hidden.is_floating_point():
            hidden = hidden == -torch.inf
        elif not hides:
            hidden = ~hidden
        for tokens in self._tokens:
            if tokens.shape != hidden.shape:
                continue
            seen, others = (set(tokens[each].tolist()) for each in (~hidden, hidden))
            if len(seen) == 1 and len(others) > 1 and not seen & others:
                self.training.slip(
                    "padding-attended", f"{len(others)} tokens are hidden, and {seen.pop()} is not"
                )
                return


def _are_next(found: list[int]) -> bool:
    """Whether labels are the next tokens, and no other ones."""
    return 1 in found and 0 not in found


def shifts(target: torch.Tensor, tokens: torch.Tensor, ignored: int) -> list[int]:
    """By how many positions the labels are later than the tokens, if they are the same texts."""
    rows, length = tokens.shape
    if target.numel() % rows or not length - 2 <= target.numel() // rows <= length:
        return []
    labels = target.detach().reshape(rows, -1)
    found = []
    for later in (0, 1, 2):
        count = min(labels.shape[1], length - later)
        mine, theirs = labels[:, :count], tokens[:, later : later + count]
        counts = mine != ignored
        if not later and count < length:
            continue  # the task may be to repeat earlier tokens
        if int(counts.sum()) >= _LABELS and bool((mine == theirs)[counts].all()):
            found.append(later)
    return found
