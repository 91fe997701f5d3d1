"""Records which weights a rank holds: whole, sharded, or as tables that other ranks may hold too.

`relations/alike.py` compares the ranks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from weakref import WeakKeyDictionary

import torch
import xxhash
from torch.optim import Optimizer

from pytest_trainsafe.compat.tensors import local_part
from pytest_trainsafe.judges.learn.events.slips import SHARDS, TABLES, WHOLE
from pytest_trainsafe.judges.learn.instrument.slips.moments import (
    Moment,
    Training,
    Watcher,
    parameters_of,
)

#: So many rounds are recorded, and so many weights that may be tables, the largest ones.
_ROUNDS, _TABLES = 8, 16
#: Smaller weights may be equal by chance.
_ELEMENTS = 8


class Held(Watcher):
    """Sees embeddings and steps, if there are several ranks."""

    kinds = ("embedded", "step")

    def __init__(self, training: Training) -> None:
        super().__init__(training)
        #: A number for each optimizer, and the ids of the weights by which it was embedded.
        self._numbers: WeakKeyDictionary[Optimizer, int] = WeakKeyDictionary()
        self._embeds: set[int] = set()

    def entered(self, moment: Moment) -> None:
        if not self.training.ranks or self.training.young >= _ROUNDS:
            return
        if moment.kind == "embedded":
            weight = moment.argument(1, "weight")
            if isinstance(weight, torch.nn.Parameter):
                self._embeds.add(id(weight))
        elif moment.outermost:
            self._record(moment.thing)

    def _record(self, optimizer: Optimizer) -> None:
        assert self.training.shared is not None
        number = self._numbers.setdefault(optimizer, len(self._numbers))
        whole: list[torch.Tensor] = []
        shards: list[torch.Tensor] = []
        for each in parameters_of(optimizer):
            part = local_part(each)
            if part is None:
                whole.append(each)
            elif each.dim() > 1 and any(place.is_shard() for place in each.placements):  # type: ignore[attr-defined]
                shards.append(part)
        among = whole if shards else []
        self.training.shared(WHOLE, f"{number}:{self._hash(among)}")
        self.training.shared(SHARDS, f"{number}:{self._hash(shards)}")
        self.training.shared(TABLES, f"{number}:{self._tables(whole)}")

    def _hash(self, tensors: Iterable[torch.Tensor]) -> str:
        hashed, count = xxhash.xxh3_64(), 0
        for each in tensors:
            if each.is_floating_point() and each.numel():
                hashed.update(self.training.digest(each, True).to_bytes(8, "little"))
                count += 1
        return hashed.hexdigest() if count else "none"

    def _tables(self, whole: Sequence[torch.Tensor]) -> str:
        """A hash of each large matrix; "e" precedes one by which this rank embeds."""
        large = [each for each in whole if each.dim() == 2 and each.numel() >= _ELEMENTS]
        large.sort(key=torch.Tensor.numel, reverse=True)
        found = []
        for each in large[:_TABLES]:
            kind = "e" if id(each) in self._embeds else "w"
            found.append(f"{kind}{self.training.digest(each, False) & 0xFFFFFFFF:08x}")
        return " ".join(found) or "none"
