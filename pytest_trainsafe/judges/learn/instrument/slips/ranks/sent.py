"""Watches gradients that are sent to another rank, as by the stages of a pipeline."""

from __future__ import annotations

from weakref import ref

import torch

from pytest_trainsafe.compat.tensors import version_of
from pytest_trainsafe.judges.learn.instrument.slips.data import tensors_in
from pytest_trainsafe.judges.learn.instrument.slips.moments import (
    Moment,
    Training,
    Watcher,
    several_ranks,
)

#: The most tensors that are followed.
_MANY = 64


class Sent(Watcher):
    """Sees models that run, collectives and backwards, if there are several ranks."""

    kinds = ("module", "collective", "backward")

    def __init__(self, training: Training) -> None:
        super().__init__(training)
        #: What models have got and want the gradient of, as received activations, by id.
        self._places: dict[int, ref[torch.Tensor]] = {}
        #: The last gradients of those that were sent, by id.
        self._sent: dict[int, ref[torch.Tensor]] = {}
        #: Those among them, not zero, to which a backward has added since.
        self._added: dict[int, ref[torch.Tensor]] = {}

    def entered(self, moment: Moment) -> None:
        if not moment.outermost or not several_ranks():
            return
        if moment.kind == "module":
            for each in tensors_in([*moment.args, *moment.kwargs.values()]):
                if each.is_leaf and each.requires_grad and len(self._places) < _MANY:
                    self._places[id(each)] = ref(each)
        elif moment.kind == "backward":
            self._sent = {key: each for key, each in self._sent.items() if each() is not None}
            moment.given["sent"] = {
                key: version_of(tensor)
                for key, each in self._sent.items()
                if (tensor := each()) is not None and bool(tensor.any())
            }
        else:
            self._sends(moment)

    def _sends(self, moment: Moment) -> None:
        sent = _sent(moment)
        if sent:
            self._places = {key: each for key, each in self._places.items() if each() is not None}
        for tensor in sent:
            places = (each() for each in self._places.values())
            if not any(place is not None and place.grad is tensor for place in places):
                continue
            added = self._added.pop(id(tensor), None)
            if added is not None and added() is tensor:
                self.training.slip("sent-again", "a backward has added to what was sent before")
            if len(self._sent) < _MANY:
                self._sent[id(tensor)] = ref(tensor)

    def left(self, moment: Moment) -> None:
        for key, version in moment.given.get("sent", {}).items():
            tensor = self._sent[key]() if key in self._sent else None
            if tensor is not None and version_of(tensor) != version:
                self._added[key] = ref(tensor)


def _sent(moment: Moment) -> list[torch.Tensor]:
    """The tensors with numbers that a call sends to one other rank."""
    name = moment.api.rpartition(".")[2]
    if name in ("send", "isend"):
        given = [moment.argument(0, "tensor")]
    elif name == "batch_isend_irecv":
        operations = moment.argument(0, "p2p_op_list")
        given = [each.tensor for each in operations if each.op.__name__ == "isend"]
    else:
        return []
    return [each for each in given if isinstance(each, torch.Tensor) and each.is_floating_point()]
