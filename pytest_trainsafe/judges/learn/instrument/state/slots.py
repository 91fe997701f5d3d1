"""Reads one recorded attribute of a training object, and decides whether it changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from pytest_trainsafe.judges.learn.events.events import Value
from pytest_trainsafe.judges.learn.instrument.describe import Describer, as_plain, plain_of
from pytest_trainsafe.judges.learn.instrument.facts import key_of

#: The value of an attribute that is None.
NOTHING = Value("NoneType")


class Slot:
    """An attribute of a training object.

    `name` is the name of the object, such as "model.fc.weight", and `cls` the name of its class.
    `kind` is "data", "grad", "buffer", "state" or "plain".  After a call that may write to a kind,
    all attributes of this kind are compared by content.  `read` returns a tensor, a plain value
    such as a number or a text, or None.  A CPU tensor without dimensions is recorded as its number
    if the kind is "state" or "plain".
    """

    __slots__ = ("_key", "attribute", "kind", "moment", "object", "read", "type", "value")

    def __init__(
        self, name: str, cls: str, attribute: str, kind: str, read: Callable[[], Any]
    ) -> None:
        self.object, self.type, self.attribute, self.kind = name, cls, attribute, kind
        self.read = read
        self.value = NOTHING
        #: The moment (a count of comparisons) when the content was last read.
        self.moment = -1
        self._key: Any = None

    def look(self, describer: Describer, exact: bool, moment: int) -> Value | None:
        """Read the attribute.  Returns its earlier value if it changed, else None.

        Without `exact`, the content of a tensor is read only if the tensor is another object or has
        another version or address.  With `exact`, it is read once in each `moment`, a count of
        comparisons.
        """
        now = self.read()
        if isinstance(now, torch.Tensor):
            if exact and self.moment == moment >= 0:
                return None
            key = id(now), key_of(now)
            if not exact and key[1] is not None and self._key == key:
                return None
            self._key, self.moment = key, moment
            value = self._of_tensor(now, describer)
        else:
            known = self._key
            # Kept even if it is equal: `Fingerprint` compares the ids of objects that are kept.
            self._key = now
            if known is not None and type(now) is type(known) and now == known:
                return None
            plain = as_plain(now)
            value = NOTHING if plain is None else plain_of(now, plain)
        before, self.value = self.value, value
        return None if _same(before, value) else before

    def _of_tensor(self, tensor: torch.Tensor, describer: Describer) -> Value:
        if self.kind in ("state", "plain") and tensor.is_cpu and not tensor.dim():
            number = tensor.item()
            return plain_of(number, as_plain(number))
        # The identity of the tensor that holds a gradient or a state does not matter.
        return describer.value(tensor, exact=True, identity=self.kind in ("data", "buffer"))


def _same(before: Value, after: Value) -> bool:
    """Whether two values have the same content.  Unreadable content counts as unchanged."""
    old, new = before.tensor, after.tensor
    if old is None or new is None:
        return before == after
    return (old.digest, old.shape, old.dtype, old.device, before.identity) == (
        *(new.digest, new.shape, new.dtype, new.device),
        after.identity,
    )
