"""Notes which examples a round trains with, in the first rounds."""

from __future__ import annotations

from collections.abc import Iterable

import torch
import xxhash

from pytest_trainsafe.judges.learn.instrument.slips.data import tensors_in
from pytest_trainsafe.judges.learn.instrument.slips.moments import Moment, Watcher
from pytest_trainsafe.record.clock import in_backward

#: So many rounds are looked at, and so many examples of a batch and elements of each.
_ROUNDS, _MANY, _ELEMENTS = 64, 64, 64
#: Fewer whole numbers may be equal in two examples by chance.
_WHOLE = 4


class Examples(Watcher):
    """Keeps `training.examples`: a hash of each example that a model got since the last step."""

    kinds = ("module", "step")

    def entered(self, moment: Moment) -> None:
        if moment.kind != "module" or not moment.outermost or self.training.rounds >= _ROUNDS:
            return
        trains = torch.is_grad_enabled() and moment.thing.training and not in_backward()
        if trains and len(self.training.examples) < _MANY:
            given = tensors_in([*moment.args, *moment.kwargs.values()])
            self.training.examples += _rows(given)

    def left(self, moment: Moment) -> None:
        if moment.kind == "step" and moment.outermost:
            self.training.examples.clear()


def _rows(given: Iterable[torch.Tensor]) -> list[int]:
    """Hashes of the examples in the first tensor that has several elements of each."""
    for each in given:
        if each.dim() < 2 or each.requires_grad or each.layout is not torch.strided:
            continue
        flat = each.detach()[:_MANY].flatten(1)
        width = flat.shape[1]
        if not width or (width < _WHOLE and not each.is_floating_point()):
            continue
        some = flat[:, :: 1 + (width - 1) // _ELEMENTS].contiguous().cpu()
        read = some.view(torch.uint8).numpy()
        return [xxhash.xxh32_intdigest(row.tobytes()) for row in read]
    return []
