"""Binds the arguments of a call to the names of the function's parameters."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from pytest_trainsafe.compat.operators import OpOverload, schema_of

#: The types of default values that are recorded if a call does not pass the argument.
_PLAIN = (bool, int, float, str)


class Binder:
    """The parameters of one function; `places` names the arguments of a call after them.

    A place is the name under which an argument is recorded, such as "arg.lr".  A function without a
    signature, such as most built-in ones, has the places "arg.0", "arg.1".  With `bound`, the first
    parameter is the object of the method and is left out.
    """

    def __init__(self, function: Callable[..., Any], bound: bool) -> None:
        self._positional: list[str] = []
        self._rest: str | None = ""
        self._defaults: dict[str, object] = {}
        if isinstance(function, OpOverload):
            self._positional = [f"arg.{each.name}" for each in schema_of(function).arguments]
            return
        try:
            parameters = list(inspect.signature(function).parameters.values())
        except (TypeError, ValueError):
            return
        self._rest = None
        kinds = inspect.Parameter
        for parameter in parameters[1:] if bound else parameters:
            place = f"arg.{parameter.name}"
            if parameter.kind in (kinds.POSITIONAL_ONLY, kinds.POSITIONAL_OR_KEYWORD):
                self._positional.append(place)
            elif parameter.kind is kinds.VAR_POSITIONAL:
                self._rest = f"{parameter.name}."
            if isinstance(parameter.default, _PLAIN):
                self._defaults[place] = parameter.default

    def places(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Iterator[tuple[str, object]]:
        """Yield each argument with its place, then the defaults of arguments that are not passed.

        A place is the name under which an argument is recorded, such as "arg.lr".  Only defaults
        that are bools, numbers or texts are yielded.
        """
        given = set()
        for index, value in enumerate(args):
            if index < len(self._positional):
                place = self._positional[index]
            else:
                place = f"arg.{self._rest or ''}{index - len(self._positional)}"
            given.add(place)
            yield place, value
        for name, value in kwargs.items():
            place = f"arg.{name}"
            given.add(place)
            yield place, value
        for place, value in self._defaults.items():
            if place not in given:
                yield place, value
