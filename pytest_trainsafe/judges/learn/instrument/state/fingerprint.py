"""Finds quickly which of many attributes may have changed, without reading the tensors."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch

from pytest_trainsafe.compat.tensors import version_of
from pytest_trainsafe.judges.learn.instrument.facts import key_of

#: Types whose instances never change: the same object means the same content.
_CONSTANT = frozenset({type(None), bool, int, float, str})

#: Types of tensors that hold their content themselves.
_PLAIN = frozenset({torch.Tensor, torch.nn.Parameter})

#: A write through a tensor raises its version; a tensor may also get another memory.
_ADDRESS = torch.Tensor.data_ptr


class Fingerprint:
    """The objects that attributes held, by id, and the versions and addresses of tensors.

    `reads` has a function for each attribute, which returns what the attribute holds; their number
    and order must stay.  Whoever compares must keep numbers and texts alive until the next
    comparison, as a `Slot` does: the id of an object that is gone may be given to another one.
    """

    def __init__(self) -> None:
        self.reads: Sequence[Callable[[], Any]] = ()
        self._ids: list[int] = []
        #: The indexes of plain tensors, and of objects that may change without notice: lists, and
        #: tensors without a version, for example.
        self._tensors: list[int] = []
        self._unclear: list[int] = []
        self._keys: list[tuple[int, int]] = []

    def changed(self) -> set[int]:
        """The indexes of the attributes that may have changed since the last call.

        These are all attributes in the first call.  Attributes that are left out have not changed,
        unless a tensor was written to without a new version.
        """
        held = [read() for read in self.reads]
        ids = list(map(id, held))
        found: set[int] = set()
        if ids != self._ids:
            earlier = self._ids or [0] * len(ids)
            changed = map(operator.ne, ids, earlier)
            found.update(itertools.compress(range(len(ids)), changed))
            self._sort(held)
            self._ids = ids
        tensors = [held[index] for index in self._tensors]
        keys = list(zip(map(version_of, tensors), map(_ADDRESS, tensors), strict=True))
        if keys != self._keys:
            pairs = zip(self._tensors, keys, self._keys, strict=True)
            found.update(index for index, now, before in pairs if now != before)
            self._keys = keys
        found.update(self._unclear)
        return found

    def _sort(self, held: Sequence[Any]) -> None:
        """Find the plain tensors and the unclear objects in `held`, and keep what is known."""
        known = dict(zip(self._tensors, self._keys, strict=True))
        self._tensors = [
            index
            for index, each in enumerate(held)
            if type(each) in _PLAIN and key_of(each) is not None
        ]
        self._keys = [known.get(index, (-1, -1)) for index in self._tensors]
        plain = set(self._tensors)
        self._unclear = [
            index
            for index, each in enumerate(held)
            if index not in plain and type(each) not in _CONSTANT
        ]
