"""Recognises values that are a multiple of the correct ones."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from fractions import Fraction

import msgspec
import torch

from pytest_trainsafe.core.code_files import relative
from pytest_trainsafe.core.finding import Pattern
from pytest_trainsafe.core.layout import Scaled
from pytest_trainsafe.core.mesh import OverMesh, mesh_of
from pytest_trainsafe.core.usage import in_print
from pytest_trainsafe.judges.compare.patterns.wrong_tensor import WrongTensor

#: The largest relative difference between a measured factor and the axis size that it is named by.
BLUR = 0.02

#: The axes that usually scale each kind, most likely first; this decides between equal sizes.
_REDUCED = ("dp", "cp", "micro-batches", "tp", "pp")
_LIKELY = {
    "activation": ("tp", "cp", "dp", "pp", "micro-batches"),
    "loss": ("cp", "micro-batches", "dp", "tp", "pp"),
    "activation_grad": ("cp", "micro-batches", "tp", "dp", "pp"),
    "param_grad": ("cp", "micro-batches", "tp", "dp", "pp"),
}

#: The kinds that an optimizer's step computes; a wrong factor usually comes from the step.
_STEPPED = frozenset({"update", "optimizer_state", "param", "master_param"})

MAX_NAMES = 3

_SOME_FACTOR = "a factor is wrong, missing, or applied twice"
_BY_CHANCE = "by chance"

#: The largest denominator of a factor of exact numbers.
FRACTIONS = 2**20

#: The start of every text here.
_IS = "the value is "

#: What follows the factor in a text if its axis is known.
_FACTOR_OF = ", a factor of "


def scaled(wrong: WrongTensor) -> Pattern | None:
    """Matches if the value is a multiple of the reference.

    A tensor whose norm comes from a few elements is always close to some multiple.  For such a
    tensor the factor must be close to an axis size, its inverse, or a product of these.
    """
    factor = wrong.numbers.ratio(wrong.value, wrong.reference)
    if factor is None:
        return None
    names = _names(abs(factor), wrong)
    for exact, found in names.items():
        if wrong.explains(wrong.value, _times(wrong, math.copysign(exact, factor))):
            if factor < 0:
                break
            return _named(factor, found, wrong)
    if factor == 0 or wrong.is_by_few(wrong.reference):
        return None
    if not wrong.explains(wrong.value, _times(wrong, factor)):
        return None
    text = f"{_IS}{_digits(factor, wrong)} times the reference"
    if factor > 0:
        cause = _SOME_FACTOR
    else:
        cause = "the sign is wrong" + (" and so is the size" if abs(factor + 1) > BLUR else "")
    short = text.removeprefix(_IS)
    return Pattern("scaled", text, cause=cause, factor=factor, short=short)


def _times(wrong: WrongTensor, factor: float) -> torch.Tensor:
    """The reference times a factor, which stands for a fraction of small numbers if it is exact."""
    by = Fraction(factor).limit_denominator(FRACTIONS) if wrong.numbers.exact else factor
    return wrong.numbers.scale(wrong.reference, by)


def _named(factor: float, names: list[str], wrong: WrongTensor) -> Pattern:
    """The pattern of a factor that equals the sizes `names`.

    A size is named as the cause only if candidate and reference differ in nothing else, and if no
    other size fits: code for one axis may as well forget to divide by the micro-batches.
    """
    text = f"{_IS}{_digits(factor, wrong)} times the reference"
    cause = ""
    if wrong.kind in _STEPPED:
        cause = (
            "the optimizer's step has a wrong factor: its learning rate or a beta, or a division "
            f"by {_or([_plain(name) for name in names])}"
        )
    for over, lines in wrong.again.items():
        if over in names and abs(factor / wrong.sizes[over] ** (len(lines) - 1) - 1) < BLUR:
            found = Pattern("scaled", text, over, _summed_again(over, lines), factor, (over,))
            return of_axis(found, over)
    first = names[0].removeprefix("1/")
    axis = first if first in wrong.sizes else ""
    found = _possible(Pattern("scaled", text, axis, cause, factor, tuple(names)))
    return of_axis(found, wrong.only) if equal_axes(found) == (wrong.only,) else found


def equal_axes(pattern: Pattern) -> tuple[str, ...]:
    """The sizes that a factor or its inverse equals: `dp` for 1/dp."""
    return tuple(map(_plain, pattern.equals))


def of_axis(pattern: Pattern, axis: str, certain: bool = True) -> Pattern:
    """The pattern of a factor that is known to be caused by `axis`, one of its `equal_axes`.

    Unless that is `certain`, the cause names the others, which the code for `axis` may use instead.
    """
    name = next(name for name in pattern.equals if _plain(name) == axis)
    text = f"{_start(pattern)}{_FACTOR_OF}{name}"
    cause = _cause(pattern.factor, axis) if _BY_CHANCE in pattern.cause else pattern.cause
    others = [each for each in equal_axes(pattern) if each != axis]
    if others and not certain:
        also = "are as many" if others == ["micro-batches"] else "have this size too"
        cause += f" ({_or(others)} {also})"
    short = text.removeprefix(_IS)
    return Pattern("scaled", text, axis, cause, pattern.factor, (name,), short)


def without_axes(pattern: Pattern, axes: Collection[str]) -> Pattern:
    """The pattern of a factor that is known not to be caused by `axes`: it occurs without them."""
    chance = [name for name in pattern.equals if _plain(name) in axes]
    left = tuple(name for name in pattern.equals if name not in chance)
    if not chance:
        return pattern
    cause = "" if _BY_CHANCE in pattern.cause else pattern.cause
    if left:
        # A number of micro-batches, or a product of sizes, is no axis.
        axis = next((name for name in map(_plain, left) if name.isidentifier()), "")
        return _possible(Pattern("scaled", _start(pattern), axis, cause, pattern.factor, left))
    them = "it" if len(chance) == 1 else "them"
    text = (
        f"{_start(pattern)}, which equals {_or(chance)} by chance: the fault occurs without {them} "
        "too"
    )
    short = _start(pattern).removeprefix(_IS)
    return Pattern("scaled", text, cause=cause or _SOME_FACTOR, factor=pattern.factor, short=short)


def _possible(pattern: Pattern) -> Pattern:
    """The pattern with the sizes that the factor equals in its text and, unless known, its cause.

    The text of `pattern` names no size.
    """
    sizes = equal_axes(pattern)
    likely = _cause(pattern.factor, _or(list(sizes)), "" if len(sizes) == 1 else "one of them")
    cause = f"{likely}; if the size matches only {_BY_CHANCE}, another factor is wrong"
    return msgspec.structs.replace(
        pattern,
        text=f"{pattern.text}, which equals {_or(list(pattern.equals))}",
        cause=pattern.cause or cause,
        short=f"{pattern.text.removeprefix(_IS)} ({_or(list(pattern.equals))})",
    )


def _start(pattern: Pattern) -> str:
    return pattern.text.partition(", which equals ")[0].partition(_FACTOR_OF)[0]


def _cause(factor: float, size: str, again: str = "") -> str:
    """What makes a factor of `size`, which the second clause calls `again` if that is given."""
    number = size.replace("micro-batches", "the number of micro-batches")
    if factor > 1:
        return f"a division by {number} is missing, or a sum over {again or size} counts replicas"
    return f"it is divided by {number} once too often, or a sum over {again or size} is missing"


def _summed_again(axis: str, lines: Sequence[str]) -> str:
    """The cause of a factor of `axis`, over which the calls at these lines all sum a gradient."""
    often = "twice" if len(lines) == 2 else f"{len(lines)} times"
    named = " and ".join(map(relative, dict.fromkeys(lines)))
    return f"the gradient is summed over {axis} {often}, at {named}"


def _plain(name: str) -> str:
    return name.removeprefix("1/").strip("()")


def _digits(factor: float, wrong: WrongTensor) -> str:
    """The factor as text, with only the digits that rounding does not change, but not as 1."""
    blur = max(wrong.allowed / wrong.norm(wrong.reference), 1e-5)
    return in_print(factor, 1.0, max(1 - math.floor(math.log10(blur)), 3))[0]


def _or(names: list[str]) -> str:
    return " or ".join(names[:MAX_NAMES])


def _names(factor: float, wrong: WrongTensor) -> dict[float, list[str]]:
    """The axis sizes close to a factor, each with its names, such as "tp" or "1/dp".

    Products and quotients of sizes are tried only if no single size is close.
    """
    order = _LIKELY.get(wrong.kind, _REDUCED)
    mesh = mesh_of(wrong.sizes)
    derived = wrong.sizes.derived if isinstance(wrong.sizes, OverMesh) else {}
    # Axes such as ep reuse the ranks of others, but a program may divide by their size as well.
    overlapping = {axis: derived[axis] for axis in mesh.overlaps if axis in derived}
    every = {**wrong.sizes, **overlapping, **wrong.factors}
    layout = wrong.parts[0].layout if wrong.parts else ()
    divided = mesh.expand(p.axis for p in layout if isinstance(p, Scaled))

    def likely(name: str) -> tuple[int, bool]:
        """A sort key for axes: first the axes that usually scale this kind of tensor.

        Axes are sorted by role (dp, cp, tp or pp), in the order of `_LIKELY` or `_REDUCED`.  Of the
        axes with one role, those by whose size the layout declares the values to be multiplied
        (`Scaled`) come last.
        """
        role = mesh.role(name)
        return order.index(role) if role in order else len(order), name in divided

    ranked = sorted(every, key=likely)
    large = {name: every[name] for name in ranked if every[name] > 1}
    for candidates in (_single(large), _products(large)):
        found: dict[float, list[str]] = {}
        for name, exact in candidates:
            if exact != 1 and abs(factor - exact) <= BLUR * exact:
                found.setdefault(exact, []).append(name)
        if found:
            return found
    return {}


def _single(sizes: Mapping[str, int]) -> Iterator[tuple[str, float]]:
    for name, size in sizes.items():
        yield name, float(size)
        yield f"1/{name}", 1 / size


def _products(sizes: Mapping[str, int]) -> Iterator[tuple[str, float]]:
    """Yields the names and values of numbers that are computed from several sizes, or from one.

    These are the products of two or more sizes, the square of each size, the inverses of the
    products and squares, and the quotients of any two sizes: "dp*tp", "1/(dp*tp)", "dp/tp".
    """
    for count in range(2, len(sizes) + 1):
        for names in itertools.combinations(sizes, count):
            product = math.prod(sizes[name] for name in names)
            yield "*".join(names), float(product)
            yield f"1/({'*'.join(names)})", 1 / product
    for name, size in sizes.items():
        yield f"{name}*{name}", float(size**2)
        yield f"1/({name}*{name})", 1 / size**2
    for above, below in itertools.permutations(sizes, 2):
        yield f"{above}/{below}", sizes[above] / sizes[below]
