"""Decides which of a candidate's buffers must equal the reference's, and on which ranks.

A buffer that no forward changes (a table, a mask, an average that is updated once a step) must
equal the reference's on every rank.  A running state, such as the statistics of batch
normalisation, depends on the micro-batches that a rank has processed, in order.  The reference
processes all micro-batches of a step, and a dp rank only some of them.  So a rank's running state
is compared only as long as the rank has processed the same micro-batches as the reference: on every
rank at dp=1, and at dp=2 at most on the first dp rank during the first step.  If cp, sp or ep is in
use, a rank sees only a part of each micro-batch; then a running state passes if it equals the
reference's, and is left out of the comparison if it differs.
A buffer whose initial value differs from the reference's is assumed to depend on the rank (such as
a table of the rank's own positions), and is compared only if its layout is declared, and then on
all ranks.  Called by the compare judge.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
import torch

from pytest_trainsafe.align.logical import logical_tensor, parts_of
from pytest_trainsafe.align.merge import Merged, merge
from pytest_trainsafe.align.sketched import is_whole
from pytest_trainsafe.core.layout import Shard
from pytest_trainsafe.core.tensor_id import INITIAL, TensorId
from pytest_trainsafe.judges.compare.rung import RungTraces
from pytest_trainsafe.judges.compare.tensors.errors import finite
from pytest_trainsafe.judges.compare.tensors.tensor import judge_tensor
from pytest_trainsafe.trace.reader import RankTrace
from pytest_trainsafe.trace.schema import TensorEvent

#: Why a running state is not compared where ranks process other data than the reference.
OWN_DATA = "it may depend on the data that each rank has seen itself"


@dataclass(frozen=True, slots=True)
class ComparedRanks:
    """The ranks on which a buffer is compared with the reference.

    `otherwise` is "" if the values must agree, else the reason why they may differ.  If they may
    differ, equal values pass and different values prove nothing.
    """

    ranks: tuple[RankTrace, ...]
    otherwise: str = ""


class Buffers:
    """The buffers of `rung`: a candidate and its reference, which ran in one dtype.

    `apart` maps the path of each buffer that is not compared, or not on every rank, to the reason.
    """

    def __init__(self, rung: RungTraces, apart: dict[str, str]) -> None:
        self.rung = rung
        self.apart = apart
        self._running = {
            (id.module, id.name)
            for id in rung.reference.ids()
            if id.kind == "buffer" and id.microbatch is not None
        }
        self._starts: dict[tuple[str, str], str] = {}
        self._seen = _history(rung.reference.ranks[0])
        self._histories = {rank.rank: _history(rank) for rank in rung.candidate.ranks}

    def compared_ranks(self, id: TensorId) -> ComparedRanks | None:
        """The ranks on which a buffer of the reference is compared.

        None if there are none; then `apart` has the reason.
        """
        name = id.module, id.name
        initial = TensorId(INITIAL, None, "buffer", *name)
        holders = self.rung.candidate.holders(initial)
        if not holders:
            self.leave(id, "the candidate has no such buffer")
            return None
        ranks = tuple(rank for rank, _ in holders)
        if any(_declared(event) for _, event in holders):
            return ComparedRanks(ranks, "" if name not in self._running else self._otherwise(id))
        if name not in self._starts:
            self._starts[name] = self._start(initial, holders)
        if self._starts[name]:
            self.leave(id, self._starts[name])
            return None
        if name not in self._running or id.step == INITIAL:
            return ComparedRanks(ranks)
        alike = tuple(rank for rank in ranks if self._same_history(rank, id))
        if not alike:
            self.leave(id, OWN_DATA)
            return None
        return ComparedRanks(alike, self._otherwise(id))

    def leave(self, id: TensorId, why: str) -> None:
        """Records in `apart` why a buffer is not compared, or not on every rank."""
        self.apart.setdefault(id.path, why)

    def merged(
        self, id: TensorId, compared_on: ComparedRanks, shape: Sequence[int]
    ) -> Merged | None:
        """The logical tensor, merged from the parts of the ranks in `compared_on`.

        `shape` is the logical shape.  None if one of these ranks did not record the tensor.
        """
        own = {rank.rank for rank in compared_on.ranks}
        parts = [part for part in parts_of(self.rung.candidate, id) if part.rank in own]
        if len(parts) < len(own):
            return None
        free = ("pp", "dp") if (id.module, id.name) in self._running else ("pp",)
        sizes, numbers = self.rung.candidate.sizes, self.rung.numbers
        return merge(parts, sizes, shape=shape, free_axes=free, where=id, numbers=numbers)

    def unchanged(self, id: TensorId, compared_on: ComparedRanks) -> bool:
        """Whether a running state is the same before and after a step on all compared ranks."""
        after = msgspec.structs.replace(id, microbatch=None, call=0)
        before = msgspec.structs.replace(after, step=id.step - 1)
        both = [(rank.tensors.get(before), rank.tensors.get(after)) for rank in compared_on.ranks]
        return all(old and new and old.hash == new.hash for old, new in both)

    def reduced(self, id: TensorId) -> bool:
        """Whether dp ranks have equal states after equally many micro-batches.

        If so, the program reduces the states over dp: dp ranks process different data, so states
        that are not reduced differ.  A state that only counts is equal without that; if it is
        reduced, each forward counts for every rank of dp.
        """
        at = id.step, id.microbatch
        if self.rung.candidate.sizes["dp"] == 1 or at not in self._seen:
            return False
        place = [*self._seen].index(at)
        hashes: dict[int, set[str]] = {}
        for rank in self.rung.candidate.ranks:
            history = self._histories[rank.rank]
            if place < len(history):
                step, microbatch = history[place]
                there = msgspec.structs.replace(id, step=step, microbatch=microbatch)
                event = rank.tensors.get(there)
                if event is not None:
                    hashes.setdefault(rank.coordinates["dp"], set()).add(event.hash)
        alike = len(hashes) > 1 and len(set().union(*hashes.values())) == 1
        # The values are read last: most buffers differ between ranks, which their hashes show.
        return alike and (not self._counts(id) or self._counts_for_all(id))

    def _counts(self, id: TensorId) -> bool:
        """Whether the first two forwards of the reference change a state by the same number."""
        initial = TensorId(INITIAL, None, "buffer", id.module, id.name)
        forwards = (
            msgspec.structs.replace(initial, step=step, microbatch=microbatch)
            for step, microbatch in self._seen[:2]
        )
        values = [self._due(each) for each in (initial, *forwards)]
        if len(values) < 3 or any(value is None for value in values):
            return False
        start, one, two = (value.double() for value in values if value is not None)
        return bool(torch.equal(two - one, one - start) and not torch.equal(one, start))

    def _counts_for_all(self, id: TensorId) -> bool:
        """Whether a rank's state has changed by what the forwards of all dp ranks change it."""
        initial = TensorId(INITIAL, None, "buffer", id.module, id.name)
        start, due = self._due(initial), self._due(id)
        rank = next((rank for rank, _ in self.rung.candidate.holders(id)), None)
        if start is None or due is None or rank is None:
            return True  # not known
        found = [p.tensor for p in parts_of(self.rung.candidate, id) if p.rank == rank.rank]
        start, due, own = start.double(), due.double(), found[0].double()
        size = self.rung.candidate.sizes["dp"]
        return own.shape == due.shape and torch.equal(own - start, size * (due - start))

    def _due(self, id: TensorId) -> torch.Tensor | None:
        """The reference's value of a buffer; None if it was not recorded with its values."""
        reference = self.rung.reference
        held = reference.holders(id) and is_whole(reference, id)
        value = logical_tensor(reference, id).whole if held else None
        return None if value is None or value.is_complex() else value

    def _start(self, id: TensorId, holders: Sequence[tuple[RankTrace, TensorEvent]]) -> str:
        """A message on how a buffer's initial value differs from the reference's; "" if equal."""
        there = self.rung.reference.holders(id)
        if not there:
            return "the reference has no such buffer"
        due = there[0][1]
        odd = [(r, e) for r, e in holders if (e.hash, e.dtype, e.shape) != _bits(due)]
        if not odd:
            return ""
        shapes = [(rank, event) for rank, event in odd if event.shape != due.shape]
        if shapes:
            rank, event = shapes[0]
            return (
                f"it has shape {list(event.shape)} on rank {rank.rank}, but shape "
                f"{list(due.shape)} in the reference; declare its layout under `buffers:`"
            )
        if all(self._close(id, rank, event) for rank, event in odd):
            return ""
        return f"its initial values on rank {odd[0][0].rank} differ from the reference's"

    def _close(self, id: TensorId, rank: RankTrace, event: TensorEvent) -> bool:
        """Whether a buffer's values on a rank differ from the reference's only by rounding.

        Such a difference is allowed, because a buffer may be a table that each Run computes.
        """
        if not (is_whole(self.rung.candidate, id) and is_whole(self.rung.reference, id)):
            return False
        reference = logical_tensor(self.rung.reference, id).whole
        found = merge(
            [part for part in parts_of(self.rung.candidate, id) if part.rank == rank.rank],
            self.rung.candidate.sizes,
            free_axes=tuple(self.rung.candidate.sizes),
            numbers=self.rung.numbers,
        ).whole
        if reference is None or found is None or found.dtype != reference.dtype:
            return False
        wide, own = reference.numpy(), found.numpy()
        if not finite(wide):
            return np.array_equal(wide, own, equal_nan=True)
        return judge_tensor(own, wide, [wide], self.rung.dtype).passed

    def _same_history(self, rank: RankTrace, id: TensorId) -> bool:
        """Whether a rank has processed the reference's micro-batches, and no others, up to here.

        "Here" is the micro-batch that produced the value `id`.
        """
        own = self._histories[rank.rank]
        if not own and not self._seen:
            return self.rung.candidate.sizes["dp"] == 1  # no call of the model was recorded
        return _until(own, id) == _until(self._seen, id) != []

    def _otherwise(self, id: TensorId) -> str:
        """Why a running state may differ after the same micro-batches; "" if it must be equal."""
        sizes, point = self.rung.candidate.sizes, self.rung.candidate.point
        sp = bool(point.get("sp", False)) and sizes["tp"] > 1
        if sizes["cp"] > 1 or sp or int(point.get("ep", 1)) > 1:
            return OWN_DATA
        if sizes["tp"] > 1 and self._beside_shards(id.module):
            return "each tp rank keeps the state of its own shard"
        return ""

    def _beside_shards(self, module: str) -> bool:
        """Whether a parameter or activation of a module, or of its parent, is sharded over tp."""
        around = {module, module.rpartition(".")[0]} - {""}
        role = self.rung.candidate.sizes.mesh.role
        return any(
            any(isinstance(p, Shard) and role(p.axis) == "tp" for p in event.layout)
            for rank in self.rung.candidate.ranks
            for id, event in rank.tensors.items()
            if id.kind in ("activation", "param") and id.module in around
        )


def _bits(event: TensorEvent) -> tuple[str, str, tuple[int, ...]]:
    return event.hash, event.dtype, event.shape


def _declared(event: TensorEvent) -> bool:
    return event.layout_source != "default"


def _history(rank: RankTrace) -> list[tuple[int, int]]:
    """The (step, micro-batch) pairs that reached a rank's part of the model, in order."""
    return list(dict.fromkeys((event.step, event.microbatch) for event in rank.inputs))


def _until(history: Sequence[tuple[int, int]], id: TensorId) -> list[tuple[int, int]]:
    """The part of a history up to the micro-batch that produced a buffer's value."""
    if id.microbatch is None:
        return [each for each in history if each[0] <= id.step]
    now = id.step, id.microbatch
    return [*history[: history.index(now)], now] if now in history else []
