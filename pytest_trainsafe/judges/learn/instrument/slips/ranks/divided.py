"""Records how the data are divided among ranks: the sampler's settings, and which examples come.

`relations/alike.py` compares the ranks.
"""

from __future__ import annotations

from typing import Any

from pytest_trainsafe.judges.learn.events.slips import ROWS, SAMPLER
from pytest_trainsafe.judges.learn.instrument.slips.moments import Moment, Training, Watcher

#: The attributes of a sampler that divides the data, all of which its ranks have in common.
_SETTINGS = ("num_replicas", "seed", "epoch", "shuffle", "drop_last")
#: So many examples of a batch are recorded: those with the smallest hashes, as any rank chooses.
_MANY = 24


class Divided(Watcher):
    """Sees iterations of loaders, and steps, if there are several ranks."""

    kinds = ("iter", "step")

    def __init__(self, training: Training) -> None:
        super().__init__(training)
        self._sampler = "none"

    def entered(self, moment: Moment) -> None:
        if not self.training.ranks:
            return
        if moment.kind == "iter":
            self._sampler = _settings(moment.thing) or self._sampler
        elif moment.outermost:
            assert self.training.shared is not None
            self.training.shared(SAMPLER, self._sampler)
            few = sorted(set(self.training.examples))[:_MANY]
            self.training.shared(ROWS, "".join(f"{each:08x}" for each in few) or "none")


def _settings(loader: Any) -> str:
    """The settings of a sampler that divides the data among ranks; "" for another one."""
    for sampler in (loader.sampler, loader.batch_sampler):
        if hasattr(sampler, "num_replicas") and hasattr(sampler, "rank"):
            return " ".join(f"{name}={getattr(sampler, name, None)}" for name in _SETTINGS)
    return ""
