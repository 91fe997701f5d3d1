"""Rules that decide which Points are valid; their results must not depend on the machine.

A program declares its own rules with `requires`; a project adds rules with the hook
`pytest_trainsafe_valid_point`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from pytest_trainsafe.core.axes import AXES
from pytest_trainsafe.core.point import Point
from pytest_trainsafe.core.usage import listing, nearest, shown
from pytest_trainsafe.errors import ArgumentError, ArgumentTypeError, SweepError

#: A function of a Point and the program's arguments, including defaults, that returns why the
#: Point is invalid, or None.
Rule = Callable[[Point, Mapping[str, object]], str | None]

_Function = TypeVar("_Function", bound=Callable[..., Any])


def requires(*rules: Rule) -> Callable[[_Function], _Function]:
    """Declares which Points are valid for a program: `@requires(divides("heads", "tp"))`.

    Each of `rules` is a function that is called with a Point and the program's arguments.  It
    returns why the Point is invalid, or None if it is valid.  Tests at invalid Points are skipped.
    Raises ArgumentError for an argument that is not callable.
    """
    given: tuple[object, ...] = rules
    if not rules or not all(map(callable, given)):
        odd = next((rule for rule in given if not callable(rule)), None)
        raise ArgumentTypeError(
            "requires takes functions that check a Point, as in @requires(divides('heads', 'tp')), "
            f"not {shown(odd) if rules else 'nothing'}"
        )

    def decorate(function: _Function) -> _Function:
        before: tuple[Rule, ...] = getattr(function, "trainsafe_rules", ())
        function.trainsafe_rules = (*before, *rules)  # type: ignore[attr-defined]
        return function

    return decorate


def divides(parameter: str, *axes: str) -> Rule:
    """A rule for `requires`: the product of `axes` must divide the program's `parameter`.

    With `divides("layers", "pp", "vpp")` a Point is skipped, for example, because "layers=4 is not
    divisible by pp*vpp=6".
    """
    if not axes:
        raise ArgumentError(
            f"divides({parameter!r}) needs at least one axis, as in divides('heads', 'tp')"
        )
    for name in (parameter, *axes):
        if not isinstance(name, str):
            raise ArgumentTypeError(
                f"divides takes names, as in divides('heads', 'tp'), not {shown(name)}"
            )

    def rule(point: Point, arguments: Mapping[str, object]) -> str | None:
        if parameter not in arguments:
            raise SweepError(
                f"divides({parameter!r}, ...): the program has no parameter {parameter!r}; its "
                f"parameters: {listing(arguments) or 'none'}"
                f"{nearest(parameter, arguments)}"
            )
        whole = arguments[parameter]
        if not isinstance(whole, int):
            raise SweepError(
                f"divides({parameter!r}, ...): the parameter {parameter!r} must be an integer, but "
                f"is {shown(whole)}"
            )
        product = 1
        for axis in axes:
            own = point.mesh.names
            if axis not in AXES and axis not in own and axis not in arguments:
                known = [*AXES, *sorted(own), *arguments]
                raise SweepError(
                    f"divides({parameter!r}, ...): {shown(axis)} is neither an axis nor a "
                    f"parameter of the program{nearest(axis, known)}"
                )
            size = point.size(axis) if axis in point.mesh.names else point.get(axis, 1)
            if not isinstance(size, int):
                raise SweepError(
                    f"divides({parameter!r}, ...): the axis {shown(axis)} is {shown(size)} at this "
                    "Point; only axes with integer values are possible"
                )
            product *= int(size)
        if not product:
            return f"{parameter}={whole} is not divisible by {'*'.join(axes)}=0"
        if whole % product:
            return f"{parameter}={whole} is not divisible by {'*'.join(axes)}={product}"
        return None

    return rule


def invalid(
    point: Point, arguments: Mapping[str, object], rules: Iterable[Rule], max_world_size: int
) -> str | None:
    """Why a Point is invalid by the built-in rules or by `rules`, or None."""
    for rule in (_world_size(max_world_size), *BUILT_IN, *rules):
        reason = rule(point, arguments)
        given: object = reason
        if given is not None and not isinstance(given, str):
            raise SweepError(
                f"a function that checks Points returned {shown(given)}; it must return text that "
                "says why the Point is invalid, or None if the Point is valid"
            )
        if reason is not None:
            return reason
    return None


def _world_size(most: int) -> Rule:
    def rule(point: Point, _arguments: Mapping[str, object]) -> str | None:
        if point.world_size <= most:
            return None
        shown = "*".join(f"{axis}={size}" for axis, size in point.sizes.items() if size > 1)
        return f"world size {point.world_size} ({shown}) is above --trainsafe-max-world-size={most}"

    return rule


def _sp(point: Point, _arguments: Mapping[str, object]) -> str | None:
    return "sp needs tp > 1" if point.get("sp", False) and point.size("tp") == 1 else None


def _vpp(point: Point, _arguments: Mapping[str, object]) -> str | None:
    return (
        "vpp > 1 needs pp > 1" if int(point.get("vpp", 1)) > 1 and point.size("pp") == 1 else None
    )


def _ep(point: Point, _arguments: Mapping[str, object]) -> str | None:
    experts = int(point.get("ep", 1))
    if point.world_size % experts:
        return f"ep={experts} does not divide the world size {point.world_size}"
    return None


def _overlaps(point: Point, _arguments: Mapping[str, object]) -> str | None:
    """Why an axis of `Mesh(overlaps=...)` has an invalid size, or None.

    The size must divide the product of the sizes of the axes that it overlaps.
    """
    for entry in point.mesh.entries:
        ranks = math.prod(point.size(axis) for axis in entry.over)
        if entry.over and ranks % point.size(entry.name):
            over = "*".join(entry.over)
            return f"{entry.name}={point.size(entry.name)} does not divide {over}={ranks}"
    return None


def _microbatches(point: Point, _arguments: Mapping[str, object]) -> str | None:
    count, replicas = int(point.get("microbatches", 0)), point.size("dp")
    if count % replicas:
        return f"microbatches={count} is not divisible by dp={replicas}"
    return None


#: The rules that hold for every program, besides the largest world size.  docs/fuzzing.md lists
#: what they exclude.
BUILT_IN: tuple[Rule, ...] = (_sp, _vpp, _ep, _overlaps, _microbatches)
