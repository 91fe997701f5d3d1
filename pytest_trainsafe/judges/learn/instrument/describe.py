"""Describes the arguments, results and attributes of observed API calls.

Each object is described by a `Value` (`judges.learn.events.events`).  A Value names the class of
the object.  It also has the content of a number or a text, or facts on a tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any
from weakref import WeakKeyDictionary

import torch
import xxhash
from torch import nn
from torch.optim import Optimizer

from pytest_trainsafe.compat.training import SCHEDULER_ATTRIBUTES
from pytest_trainsafe.core.cut_text import encodable
from pytest_trainsafe.judges.learn.events.events import MAX_TEXT, Plain, Value
from pytest_trainsafe.judges.learn.instrument.facts import Objects
from pytest_trainsafe.judges.learn.instrument.names import public_name

#: Items of a tuple, list or dict that are described one by one, and how deep.
MAX_ITEMS, DEPTH = 8, 2

#: Attributes of an object other than a module that are described with it.
MAX_ATTRIBUTES = 16

#: Types of torch's that are kept as text.
_AS_TEXT = (torch.dtype, torch.device, torch.memory_format, torch.layout)

Put = Callable[[str, Value], None]


class Describer:
    """Makes Values, which describe objects (see the top of this file).

    `name_of` gives the name of a module in its model, "" if it has none, and `is_known` says
    whether a parameter belongs to a model that is followed.
    """

    def __init__(
        self,
        objects: Objects,
        name_of: Callable[[nn.Module], str],
        is_known: Callable[[object], bool] = lambda parameter: True,
    ) -> None:
        self._objects = objects
        self._name_of = name_of
        self._is_known = is_known
        #: The parameters that required no gradient when an optimizer was made or first stepped.
        self._frozen: WeakKeyDictionary[Optimizer, frozenset[int]] = WeakKeyDictionary()
        #: The parameters that had a gradient at an earlier step of an optimizer.
        self._graded: WeakKeyDictionary[Optimizer, set[int]] = WeakKeyDictionary()

    def value(
        self, thing: object, exact: bool = False, identity: bool = True, read: bool = True
    ) -> Value:
        """One object as a Value, without its items and attributes.

        With `exact`, a tensor's content is read again even if facts of the tensor are cached;
        without `read`, it is not read.  Without `identity`, the Value of a tensor has 0 instead of
        the tensor's number.
        """
        if isinstance(thing, torch.Tensor):
            facts, number = self._objects.tensor(thing, exact, read)
            return Value(public_name(type(thing)), None, facts, number if identity else 0)
        plain = as_plain(thing)
        if plain is not None:
            return plain_of(thing, plain)
        return Value(public_name(type(thing)), None, None, self._objects.identity(thing))

    def put(
        self,
        place: str,
        thing: object,
        values: dict[str, Value],
        depth: int = DEPTH,
        read: bool = True,
    ) -> None:
        """Put the Value of an argument or a result into `values`, under the key `place`.

        Items of a tuple, a list or a dict have keys such as "PLACE.0" or "PLACE.NAME".  Items of
        items are put up to the depth `depth`.  Without `read`, the content of tensors is not read.
        """
        if isinstance(thing, tuple | list):
            if type(thing) is not tuple or place != "result" or not thing:
                values[place] = self.value(thing, read=read)
            if isinstance(thing, list):
                values[f"{place}.length"] = plain_value(int, len(thing))
            if depth and (len(thing) <= MAX_ITEMS or place == "result"):
                for index, item in enumerate(thing[:MAX_ITEMS]):
                    self.put(f"{place}.{index}", item, values, depth - 1, read)
            return
        values[place] = self.value(thing, read=read)
        if isinstance(thing, Mapping) and depth:
            values[f"{place}.length"] = plain_value(int, len(thing))
            if len(thing) <= MAX_ITEMS and all(isinstance(key, str) for key in thing):
                for key, item in thing.items():
                    self.put(f"{place}.{key[:MAX_TEXT]}", item, values, depth - 1, read)
            elif len(thing) > MAX_ITEMS:
                self._put_summary(place, thing, values)

    def put_self(
        self,
        thing: object,
        values: dict[str, Value],
        groups: bool,
        holds: bool = False,
        read: bool = True,
    ) -> None:
        """Put the object of a method call into `values`, with some of its attributes.

        For a module, adds its training mode and its name.  For an optimizer, `groups` adds the
        settings of its groups, and `holds` adds facts on its parameters (`_put_held`).  For any
        other object except a tensor, adds its `plain_attributes`.  Without `read`, the content of a
        tensor is not read.
        """
        values["self"] = self.value(thing, read=read)
        if isinstance(thing, nn.Module) and "training" in vars(thing):
            values["self.training"] = plain_value(bool, thing.training)
            name = self._name_of(thing)
            if name:
                values["self.name"] = plain_value(str, name)
        elif isinstance(thing, Optimizer):
            if groups:
                for name, plain in group_attributes(thing).items():
                    values[f"self.param_groups.{name}"] = plain_value(type(plain), plain)
            if holds:
                self._put_held(thing, values)
        elif not isinstance(thing, torch.Tensor | nn.Module):
            for name, plain in plain_attributes(thing).items():
                values[f"self.{name}"] = plain_value(type(plain), plain)

    def made(self, optimizer: Optimizer) -> None:
        """Notes which parameters of `optimizer`, which was just created, require no gradient."""
        self._frozen[optimizer] = frozenset(
            id(parameter) for parameter in _held(optimizer) if not parameter.requires_grad
        )

    def put_together(self, given: Mapping[str, object], values: dict[str, Value]) -> None:
        """Put facts that follow from several arguments of a call into `values`.

        If a call has an optimizer and models as arguments, "in_model" says whether the models have
        all parameters of the optimizer.
        """
        optimizers = {p: each for p, each in given.items() if isinstance(each, Optimizer)}
        models = [each for each in given.values() if isinstance(each, nn.Module)]
        if optimizers and models:
            known = {id(each) for model in models for each in model.parameters()}
            for place, optimizer in optimizers.items():
                inside = all(id(each) in known for each in _held(optimizer))
                values[f"{place}.in_model"] = plain_value(bool, inside)

    def put_stepped(self, name: str, modes: str, values: dict[str, Value]) -> None:
        """Put the name of an optimizer that stepped into `values`, if it has one.

        `modes` says in which modes models ran since the last step (`modes.Modes`).
        """
        if name:
            values["self.name"] = plain_value(str, name)
        if modes:
            values["self.modes"] = plain_value(str, cut(modes))

    def _put_held(self, optimizer: Optimizer, values: dict[str, Value]) -> None:
        """Put facts on the parameters that an optimizer holds into `values`.

        "has_gradients" says whether any of the parameters has a gradient, if any of them is one or
        belongs to a recorded model: float32 copies of the weights of a model are plain tensors.
        "zero_rate" says whether
        the learning rate of every group is zero, as in the first step of a warm-up.  "frozen"
        counts the parameters that require no gradient now, but required one when the optimizer was
        made, and were never trained: some methods freeze layers after they were.  If no parameter
        requires a gradient now, it counts all parameters.  "stale" counts the
        parameters that have no gradient and belong to none of the recorded models; where others
        have one, those that had one before are not counted: a step may leave out a task.
        "ungraded" counts the parameters that require a gradient and have none.
        """
        if optimizer not in self._frozen:
            self.made(optimizer)
        before, graded = self._frozen[optimizer], self._graded.setdefault(optimizer, set())
        held = trained = frozen = stale = resting = gradients = ungraded = own = 0
        for parameter in _held(optimizer):
            held += 1
            own += isinstance(parameter, nn.Parameter) or self._is_known(parameter)
            trained += parameter.requires_grad
            known = id(parameter) in before or id(parameter) in graded
            frozen += not parameter.requires_grad and not known
            if parameter.grad is not None:
                gradients += 1
                if parameter.requires_grad:
                    graded.add(id(parameter))
            else:
                unknown = not self._is_known(parameter)
                stale += unknown
                resting += unknown and id(parameter) in graded
                ungraded += parameter.requires_grad
        stale -= resting if gradients else 0
        rates = (group.get("lr") for group in optimizer.param_groups)
        rests = all(isinstance(rate, int | float) and rate == 0 for rate in rates)
        values["self.has_gradients"] = plain_value(bool, gradients > 0 and own > 0)
        values["self.zero_rate"] = plain_value(bool, rests)
        values["self.frozen"] = plain_value(int, frozen if trained else held)
        values["self.stale"] = plain_value(int, stale)
        values["self.ungraded"] = plain_value(int, ungraded)

    def _put_summary(self, place: str, thing: Mapping[Any, Any], values: dict[str, Value]) -> None:
        """Put hashes of the keys and of the tensors of a large dict, such as a state dict."""
        names, content = xxhash.xxh3_64(), xxhash.xxh3_64()
        for key in sorted(thing, key=str):
            names.update(f"{key}\0".encode(errors="surrogatepass"))
            item = thing[key]
            if isinstance(item, torch.Tensor):
                facts, _ = self._objects.tensor(item)
                content.update(f"{key}\0".encode(errors="surrogatepass"))
                content.update(f"{facts.dtype}{facts.shape}{facts.digest}\0".encode())
        values[f"{place}.names"] = plain_value(str, names.hexdigest())
        values[f"{place}.content"] = plain_value(str, content.hexdigest())


def _held(optimizer: Optimizer) -> Iterator[torch.Tensor]:
    """Yield the parameters of all groups of an optimizer."""
    for group in optimizer.param_groups:
        yield from group["params"]


def as_plain(thing: object) -> Plain:
    """A number, a truth value or a text that stands for the object; None if there is none."""
    if isinstance(thing, bool | int | float):
        if type(thing) in _NUMBERS:
            return thing if not _is_huge(thing) else cut(str(thing))
        return float(thing) if isinstance(thing, float) else int(thing)
    if isinstance(thing, str):
        return thing if len(thing) <= MAX_TEXT else thing[:MAX_TEXT]
    if isinstance(thing, _AS_TEXT):
        return str(thing).removeprefix("torch.")
    if isinstance(thing, tuple | list) and 0 < len(thing) <= MAX_ITEMS:
        if all(isinstance(item, bool | int | float) for item in thing):
            return cut(", ".join(map(repr, thing)))
    elif type(thing).__module__ == "numpy" and getattr(thing, "shape", None) == ():
        return as_plain(thing.item())  # type: ignore[attr-defined]
    return None


def plain_of(thing: object, plain: Plain) -> Value:
    """The Value of an object whose content is recorded as `plain`, the result of `as_plain`."""
    return plain_value(type(thing) if isinstance(plain, str) else type(plain), plain)


def _is_huge(number: float) -> bool:
    """Whether an int has more digits than are kept."""
    return isinstance(number, int) and number.bit_length() > 512


def cut(text: str) -> str:
    """A text of at most MAX_TEXT characters; a longer one ends in a hash of all of it."""
    if len(text) <= MAX_TEXT:
        return text
    return f"{text[: MAX_TEXT - 17]}#{xxhash.xxh3_64_hexdigest(encodable(text).encode())}"


def plain_value(cls: Any, plain: Plain) -> Value:
    """The Value of an object of class `cls` whose content is recorded as `plain`."""
    key = cls, type(plain), plain  # 1, 1.0 and True are equal
    known = _values.get(key)
    if known is None:
        if len(_values) >= _MAX_VALUES:
            _values.clear()
        known = _values[key] = Value(public_name(cls), plain)
    return known


#: Values that are used again, by class and content.
_values: dict[tuple[Any, type, Plain], Value] = {}
_MAX_VALUES = 4096


def plain_attributes(thing: object) -> dict[str, Plain]:
    """The attributes of an instance for which `as_plain` has a value, by name.

    At most MAX_ATTRIBUTES are returned.  Private attributes are left out, except "_step_count" and
    "_last_lr" of torch's schedulers.
    """
    held = getattr(thing, "__dict__", None)
    found: dict[str, Plain] = {}
    if not isinstance(held, dict):
        return found
    for name, item in list(held.items()):
        if not isinstance(name, str) or (name.startswith("_") and name not in SCHEDULER_ATTRIBUTES):
            continue
        plain = as_plain(item)
        if plain is not None:
            found[name] = plain
            if len(found) == MAX_ATTRIBUTES:
                break
    return found


_NUMBERS = (bool, int, float)


def group_attributes(optimizer: Optimizer) -> dict[str, Plain]:
    """The settings of an optimizer's groups that are numbers, bools or texts.

    If all groups are equal, the keys are the names of the settings.  Otherwise each key begins with
    the index of the group, as in "0.lr".
    """
    groups: list[dict[str, Plain]] = [
        {name: plain for name, item in group.items() if (plain := _scalar(item)) is not None}
        for group in optimizer.param_groups[:MAX_ITEMS]
    ]
    if len(groups) == 1 or all(group == groups[0] for group in groups[1:]):
        return groups[0] if groups else {}
    return {f"{i}.{name}": plain for i, group in enumerate(groups) for name, plain in group.items()}


def _scalar(item: object) -> Plain:
    """The result of `as_plain` or, for a tensor with one element on the CPU, its number.

    None for any other tensor.  A learning rate may be such a tensor: `lr=torch.tensor(0.1)`.
    """
    if isinstance(item, torch.Tensor):
        return item.item() if item.numel() == 1 and item.is_cpu else None
    return as_plain(item)
