"""Records what ranks sum in a step, and what they declare to be replicated.

`relations/alike.py` compares the ranks.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
import xxhash

from pytest_trainsafe.judges.learn.events.slips import DECLARED, SUMMED
from pytest_trainsafe.judges.learn.instrument.slips.moments import Moment, Training, Watcher
from pytest_trainsafe.record.clock import in_backward

#: So many rounds are looked at, and so many tensors of each.
_ROUNDS, _MANY = 8, 64
#: The most meshes of a rank that are recorded.
_MESHES = 6
#: Smaller tensors may be equal by chance, or count something.
_ELEMENTS = 8
#: The collectives that sum, and where each has what it sums and the operation.
_SUMS = {
    "all_reduce": (0, "tensor", 1),
    "reduce_scatter_tensor": (1, "input", 2),
    "reduce_scatter": (1, "input_list", 2),
}


class Summed(Watcher):
    """Sees models that run, collectives, declarations and steps, if there are several ranks."""

    kinds = ("module", "collective", "declared", "step")

    def __init__(self, training: Training) -> None:
        super().__init__(training)
        #: Whether a model has run since the last step: other sums are no part of a step.
        self._open = False
        self._summed, self._sums = xxhash.xxh3_64(), 0
        #: What was declared for each mesh.
        self._declared: dict[tuple[int, ...], xxhash.xxh3_64] = {}
        self._declarations = 0

    def entered(self, moment: Moment) -> None:
        if not self.training.ranks or self.training.young >= _ROUNDS:
            return
        if moment.kind == "module":
            self._open |= torch.is_grad_enabled() and moment.thing.training
        elif moment.kind == "collective":
            if self._open and not moment.inside("step") and moment.outermost:
                self._sum(moment)
        elif moment.kind == "declared":
            if self._open and not in_backward():
                self._declare(moment)
        elif moment.outermost:
            assert self.training.shared is not None
            if self._sums:
                self.training.shared(SUMMED, self._summed.hexdigest())
            texts = [f"{_short(ranks)}={it.hexdigest()}" for ranks, it in self._declared.items()]
            self.training.shared(DECLARED, " ".join(texts[:_MESHES]) or "none")
            self._open, self._summed, self._sums = False, xxhash.xxh3_64(), 0
            self._declared, self._declarations = {}, 0

    def _sum(self, moment: Moment) -> None:
        place = _SUMS.get(moment.api.rpartition(".")[2])
        if place is None or self._sums >= _MANY:
            return
        at, name, op = place
        if moment.argument(op, "op", dist.ReduceOp.SUM) not in (
            dist.ReduceOp.SUM,
            dist.ReduceOp.AVG,
        ):
            return
        given = moment.argument(at, name)
        for each in given if isinstance(given, list) else [given]:
            if not isinstance(each, torch.Tensor) or each.numel() < _ELEMENTS:
                continue
            if each.is_floating_point() and bool(each.detach().any()):
                self._summed.update(self.training.digest(each, True).to_bytes(8, "little"))
                self._sums += 1

    def _declare(self, moment: Moment) -> None:
        """A tensor of this rank is declared to be a tensor that all ranks of a mesh have."""
        local, mesh = moment.argument(0, "local_tensor"), moment.argument(1, "device_mesh")
        placements = moment.argument(2, "placements") or ()
        if not isinstance(local, torch.Tensor) or mesh is None or not mesh.size() > 1:
            return
        replicated = placements and all(each.is_replicate() for each in placements)
        if replicated and self._declarations < _MANY:
            ranks = tuple(mesh.mesh.flatten().tolist())
            hashed = self._declared.setdefault(ranks, xxhash.xxh3_64())
            hashed.update(self.training.digest(local, True).to_bytes(8, "little"))
            self._declarations += 1


def _short(ranks: tuple[int, ...]) -> str:
    return xxhash.xxh32_hexdigest(repr(ranks).encode())
