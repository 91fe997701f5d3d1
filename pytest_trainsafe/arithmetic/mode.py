"""Runs a program on numbers of one kind: every operator is computed by its semantics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from pytest_trainsafe.arithmetic.errors import (
    InFlightError,
    MissingSemanticsError,
    UnseenNumberError,
)
from pytest_trainsafe.arithmetic.numbers import Numbers
from pytest_trainsafe.arithmetic.origins import Integers, Origins
from pytest_trainsafe.arithmetic.packing import in_torch
from pytest_trainsafe.arithmetic.semantics import complexes
from pytest_trainsafe.arithmetic.table import Semantics, table
from pytest_trainsafe.arithmetic.variants import FOREACH, computed, find, foreach, operator_name
from pytest_trainsafe.compat.dispatch_modes import CompilableMode, on_fake_tensors, without_modes
from pytest_trainsafe.compat.distributed.held_work import Begun, uses_in_flight
from pytest_trainsafe.compat.operators import OpOverload, only_views
from pytest_trainsafe.compat.tensors import is_fake_class

#: The operator whose semantics a reduction over ranks has, whatever calls it.
_REDUCTION = "c10d.allreduce_"

#: Operators of process groups, by which a program waits.
_BETWEEN_RANKS = ("c10d.", "_c10d_functional.")

_FOREACH = "aten." + FOREACH

#: The dtypes whose elements, or their real and imaginary parts, are numbers.
_CARRIERS = frozenset({torch.float64, torch.complex128})

_PLAIN = frozenset({torch.Tensor, torch.nn.Parameter})
_MANY = (list, tuple)


@dataclass(frozen=True, slots=True)
class _Known:
    """What the mode knows of an operator that it has met.

    It communicates `between` ranks, is a loop over lists of tensors (`foreach`), may make complex
    numbers `from_real` ones, or only makes a `view`, which its semantics allow.
    """

    name: str
    semantics: Semantics | None
    between: bool
    foreach: bool
    from_real: bool
    view: bool


class ExactMode(CompilableMode):  # type: ignore[no-untyped-call]
    """While it is active, float64 tensors carry `numbers`, and operators compute by semantics.

    A complex128 tensor carries two numbers in each element.
    Tensors made before must be entered: `enter` returns a tensor, `enter_` overwrites it, as for
    the parameters of a model.  Tensors of narrower dtypes become float64 tensors, because the cast
    to the dtype that a recipe trains in is the identity here.  `met` counts the operators on
    numbers, and `integers` hashes the integers that they are given.
    Raises MissingSemanticsError for an operator that `semantics` lacks, and UnseenNumberError for
    a float tensor of unknown origin.
    """

    def __init__(self, numbers: Numbers, semantics: Mapping[str, Semantics] | None = None) -> None:
        super().__init__()
        self.numbers = numbers
        self.semantics = table() if semantics is None else semantics
        self.met: Counter[str] = Counter()
        self.integers = Integers()
        self._origins = Origins()
        self._known: dict[OpOverload, _Known] = {}

    def enter(self, values: torch.Tensor) -> torch.Tensor:
        """Real values as numbers; tensors that are not float are returned as they are."""
        if values.is_complex():
            real = torch.view_as_real(values.detach().to(torch.complex128).resolve_conj())
            return torch.view_as_complex(self.enter(real))
        if not values.is_floating_point():
            return values
        with without_modes(), torch.no_grad():
            entered = in_torch(self.numbers.enter(values.detach().clone()))
        self._origins.note(entered)
        return entered

    def enter_(self, *tensors: torch.Tensor) -> None:
        """Overwrite real float64 tensors, such as parameters and buffers, by their numbers."""
        with without_modes():
            for each in tensors:
                if each.is_complex():
                    each = torch.view_as_real(each.detach())
                if each.is_floating_point():
                    each.detach().copy_(self.numbers.enter(each.detach()))
                    self._origins.note(each)

    def note(self, *tensors: torch.Tensor) -> None:
        """Accept tensors that hold packed numbers already."""
        for each in tensors:
            self._origins.note(each)

    def reduced_over(self, tensors: Sequence[torch.Tensor], group: Any, kind: str) -> Begun:
        """Begins to reduce numbers over the ranks of a group that is written in Python.

        All tensors are exchanged at once.
        """
        from pytest_trainsafe.arithmetic.semantics.collectives import begin

        if _REDUCTION not in self.semantics:
            raise MissingSemanticsError(_REDUCTION)
        self._check(_REDUCTION, tensors)
        self.met[_REDUCTION] += len(tensors)
        with without_modes(), torch.no_grad():
            flat = torch.cat([each.reshape(-1) for each in tensors])
            works, finish = begin(self.numbers, flat, group, kind)
        sizes = [each.numel() for each in tensors]
        return Begun(works, lambda: list(torch.split(finish()[0], sizes)))

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        known = self._known.get(func) or self._met_first(func)
        if known.view and args and type(x := args[0]) in _PLAIN and x.dtype is torch.float64:
            # A view uses no values, and its memory is known if that of its argument is.
            if x.is_meta:
                return func(*args, **kwargs)
            self._check(known.name, (x,))
            self.met[known.name] += 1
            return func(*args, **kwargs)
        tensors = _tensors((*args, *kwargs.values()) if kwargs else args)
        if _without_data(types, tensors, kwargs):
            return func(*args, **kwargs)
        if not _PLAIN.issuperset(types):
            return NotImplemented  # DTensor and its like unpack themselves first.
        return self._computed(known, func, args, kwargs, tensors)

    def compute(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What one operator of ordinary tensors returns; the mode need not be active."""
        known = self._known.get(func) or self._met_first(func)
        return self._computed(known, func, args, kwargs, _tensors((*args, *kwargs.values())))

    def _met_first(self, func: OpOverload) -> _Known:
        name = operator_name(func)
        semantics = find(self.semantics, name)
        moved = semantics is not None and semantics.rule is None
        known = self._known[func] = _Known(
            name,
            semantics,
            between=name.startswith(_BETWEEN_RANKS),
            foreach=name.startswith(_FOREACH),
            from_real=name in complexes.FROM_REAL,
            view=moved and only_views(func),
        )
        return known

    def _computed(
        self,
        known: _Known,
        func: OpOverload,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        tensors: list[torch.Tensor],
    ) -> Any:
        """The same; `tensors` are those among the arguments."""
        name, semantics = known.name, known.semantics
        if not known.between and uses_in_flight(func, args, kwargs):
            raise InFlightError(f"{name} uses a tensor that an asynchronous call writes")
        if known.foreach:
            return foreach(func, args, kwargs, self._run)
        given = [each for each in tensors if each.is_floating_point()]
        if (known.from_real or len(given) < len(tensors)) and complexes.on_complex(
            name, args, tensors, kwargs
        ):
            return self._on_complex(known, func, args, kwargs, tensors)
        if not given and semantics and semantics.between_ranks:
            return computed(semantics, self.numbers, func, args, kwargs)
        if not given and not (semantics and semantics.factory):
            result = func(*args, **kwargs)
            if not _floats(result):
                return result
            # Integers become numbers: the result of the operator is in the wrong arithmetic.
        if semantics is None:
            return self._decomposed(name, func, args, kwargs)
        if not name.endswith("lift_fresh"):
            self._check(name, given)
        self.met[name] += 1
        for each in tensors if len(given) < len(tensors) else ():
            if not each.is_floating_point():
                self.integers.add(name, each)
        if semantics.rule is None:
            result = func(*args, **kwargs)
        else:
            result = computed(semantics, self.numbers, func, args, kwargs)
        for each in _floats(result):
            if type(each) in _PLAIN:
                self._origins.note(each)
        return result

    def _on_complex(
        self,
        known: _Known,
        func: OpOverload,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        tensors: list[torch.Tensor],
    ) -> Any:
        """An operator on complex tensors, whose parts are numbers."""
        name, semantics = known.name, known.semantics
        given = [each for each in tensors if each.is_floating_point() or each.is_complex()]
        self._check(name, given)
        if name not in complexes.VIEWS and (semantics is None or semantics.rule is not None):
            with self:
                return complexes.computed(name, args, kwargs)
        self.met[name] += 1
        result = func(*args, **kwargs)
        for each in _tensors(result):
            self._origins.note(each)
        return result

    def _decomposed(
        self, name: str, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """An operator that torch defines by others, which reaches the mode in inference mode."""
        with self:
            result = func.decompose(*args, **kwargs)
        if result is NotImplemented:
            raise MissingSemanticsError(name)
        return result

    def _run(self, packet: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        with self:
            return packet(*args, **kwargs)

    def _check(self, name: str, tensors: Iterable[torch.Tensor]) -> None:
        for each in tensors:
            if each.dtype not in _CARRIERS or not self._origins.knows(each):
                raise UnseenNumberError(
                    f"{name} is given a {each.dtype} tensor of shape {list(each.shape)} that no "
                    "operator of this run made, such as one of torch.from_numpy or of a model "
                    "that was built before; pass it through `enter` or `enter_` of the mode"
                )


def _without_data(
    types: Iterable[type], tensors: Sequence[torch.Tensor], kwargs: dict[str, Any]
) -> bool:
    """Whether an operator only computes shapes, as DTensor does to plan a sharding."""
    if not _PLAIN.issuperset(types) and any(
        is_fake_class(each) for each in types if each not in _PLAIN
    ):
        return True
    if not tensors and on_fake_tensors():  # a factory
        return True
    if "device" in kwargs and torch.device(kwargs["device"] or "cpu").type == "meta":
        return True
    return any(each.is_meta for each in tensors)


def _tensors(values: Any) -> list[torch.Tensor]:
    """The tensors among an operator's arguments or results, and in lists of them."""
    if isinstance(values, torch.Tensor):
        return [values]
    if not isinstance(values, _MANY):
        return []
    found = []
    for each in values:
        if isinstance(each, torch.Tensor):
            found.append(each)
        elif isinstance(each, _MANY):
            found += _tensors(each)
    return found


def _floats(values: Any) -> list[torch.Tensor]:
    if type(values) is torch.Tensor:  # as nearly always
        return [values] if values.is_floating_point() else []
    return [each for each in _tensors(values) if each.is_floating_point()]
