"""Small sizes in place of a test's own, at which a proof says the same of the program.

A program declares which of its parameters are sizes of tensors (`sizes`); otherwise those that its
rules read are taken.  docs/prove.md argues, operator class by operator class, why equality at the
small sizes carries over, and what breaks it; `size_branches` finds that in the program's text.
"""

from __future__ import annotations

import ast
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from pytest_trainsafe.core.point import Point
from pytest_trainsafe.core.untrusted import read_file
from pytest_trainsafe.core.usage import listing
from pytest_trainsafe.errors import ArgumentError
from pytest_trainsafe.sweep.case import Case
from pytest_trainsafe.sweep.validity import invalid

#: What is kept, the most first; see `reduced`.
_LEVELS = ("products", "pairs", "axes")

#: The largest sizes that are tried, one after the other.
_BOUNDS = (4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)

#: The most configurations that are checked by a program's rules.
_MOST = 2_000

#: The most divisions that are listed as not kept.
_MAX_LOST = 6

#: Source files longer than this are not searched for branches.
_MAX_SOURCE = 2**22

Sizes = dict[str, int]


class _Read(dict[str, object]):
    """Arguments that note which of them a rule reads."""

    def __init__(self, arguments: Mapping[str, object]) -> None:
        super().__init__(arguments)
        self.read: dict[str, None] = {}

    def __getitem__(self, name: str) -> object:
        self.read[name] = None
        return super().__getitem__(name)

    def get(self, name: str, default: object = None) -> object:
        self.read[name] = None
        return super().get(name, default)


def sizes_of(case: Case) -> Sizes:
    """The sizes of a test by parameter: those its program declares, or those that its rules read.

    Sizes of 0 and 1 and other values than integers are left out.
    """
    program = case.program
    arguments = program.complete(case.candidate_arguments)
    names: Iterable[str] = program.traits.sizes
    if not names:
        seen = _Read(arguments)
        for rule in program.rules:
            rule(case.point, seen)
        names = seen.read
    found = ((name, arguments.get(name)) for name in names)
    return {name: size for name, size in found if type(size) is int and size > 1}


def reduced(case: Case) -> list[tuple[Sizes, Case]]:
    """Two configurations of small sizes, and the test at each, the smaller one first.

    The sizes keep what equality of the two sides may depend on:

    - a size that an axis divides is divided by it, and one that it does not divide is not;
    - nothing that computes becomes 1: a part of 2 or more stays 2 or more;
    - equal sizes stay equal, and unequal ones unequal, in the same order;
    - the program's rules allow the Point;
    - products of axes divide them as before, and so do the sizes each other, so that N = P * Q
      stays a product; where no small sizes keep all of that, `outside` names what is not kept.

    The second configuration has another value of each size that can have one, the largest first.
    Raises ArgumentError if the program has no sizes, or no small ones exist.
    """
    sizes = sizes_of(case)
    if not sizes:
        raise ArgumentError(
            f"{case.program.name} declares no sizes, and its rules read none: declare the "
            "parameters that are sizes of tensors, as in @sizes('hidden', 'heads', 'seq_len')"
        )
    for level in _LEVELS:
        first = next(_configurations(case, sizes, level, {}), None)
        if first is None:
            continue
        largest = sorted(sizes, key=lambda name: -sizes[name])
        for count in range(len(largest), 0, -1):
            other = {name: first[name] for name in largest[:count]}
            second = next(_configurations(case, sizes, level, other), None)
            if second is not None:
                return [(each, _at(case, each)) for each in (first, second)]
    raise ArgumentError(
        f"no two configurations of sizes up to {_BOUNDS[-1]} keep the relations among "
        f"{_words(sizes)} at {case.point}; declare fewer sizes"
    )


def changed(own: Mapping[str, int], small: Mapping[str, int], point: Point) -> list[str]:
    """The sizes of a test of which one divides the other, or ranks divide one, only there."""
    found = [
        f"{name}={own[name]} and {product} ranks"
        for name in own
        for product in _products(point)
        if not _alike(own[name], small[name], product, product)
    ]
    found += [
        f"{name}={own[name]} and {less}={own[less]}"
        for name, less in itertools.permutations(own, 2)
        if own[name] > own[less] and not _alike(own[name], small[name], own[less], small[less])
    ]
    return found


def _at(case: Case, sizes: Sizes) -> Case:
    """The test with other sizes, in its arguments and where its Point has them as axes."""
    axes = dict(case.point)
    swept = {name: size for name, size in sizes.items() if name in axes}
    return replace(
        case,
        point=case.point.replace(**swept),
        arguments={**case.arguments, **sizes},
        candidate_arguments={**case.candidate_arguments, **sizes},
    )


def _configurations(
    case: Case, sizes: Sizes, level: str, other: Mapping[str, int]
) -> Iterator[Sizes]:
    """Small sizes that keep what `reduced` says, the smallest first, none of them as in `other`."""
    names = sorted(sizes, key=lambda name: sizes[name])
    products = _products(case.point) if level == "products" else _axes(case.point)
    tried = 0
    for bound in _BOUNDS:
        for values in _assigned(names, sizes, products, other, bound, level != "axes"):
            tried += 1
            if tried > _MOST:
                return
            if max(values.values()) > bound // 2 and _is_valid(case, values):
                yield {name: values[name] for name in sizes}


def _axes(point: Point) -> list[int]:
    """The sizes of axes that may cut a tensor."""
    sizes = (int(point.get(axis, 1)) for axis in (*point.mesh.axes, *point.mesh.overlaps, "vpp"))
    return [size for size in sizes if size > 1]


def _products(point: Point) -> list[int]:
    """The products of the sizes of axes that may cut a tensor."""
    several = _axes(point)
    chosen = (itertools.combinations(several, count) for count in range(1, len(several) + 1))
    return sorted({math.prod(each) for group in chosen for each in group})


def _assigned(
    names: Sequence[str],
    sizes: Sizes,
    products: Sequence[int],
    other: Mapping[str, int],
    bound: int,
    divide: bool,
) -> Iterator[Sizes]:
    """Assigns small sizes to `names`, which are in the order of their sizes.

    `divide` says whether sizes keep dividing each other.
    """
    values: Sizes = {}

    def assign(place: int) -> Iterator[Sizes]:
        if place == len(names):
            yield dict(values)
            return
        name = names[place]
        for value in range(2, min(bound, sizes[name]) + 1):
            if value == other.get(name) or not _keeps_axes(sizes[name], value, products):
                continue
            pairs = ((sizes[each], values[each]) for each in names[:place])
            if all(_keeps_pair(sizes[name], value, *pair, divide) for pair in pairs):
                values[name] = value
                yield from assign(place + 1)
                del values[name]

    return assign(0)


def _keeps_axes(size: int, small: int, products: Sequence[int]) -> bool:
    """Whether a small size is cut over axes as the size that it stands for."""
    return all(_alike(size, small, product, product) for product in products)


def _keeps_pair(size: int, small: int, less: int, small_less: int, divide: bool) -> bool:
    """Whether two small sizes are related as those that they stand for, `less` not the larger."""
    if size == less:
        return small == small_less
    return small > small_less and (not divide or _alike(size, small, less, small_less))


def _alike(size: int, small: int, by: int, small_by: int) -> bool:
    """Whether both sizes can be divided or neither, with quotients of 2 or more, or both 1."""
    if size % by:
        return small % small_by != 0
    return small % small_by == 0 and (small // small_by > 1) == (size // by > 1)


def _is_valid(case: Case, sizes: Sizes) -> bool:
    small = _at(case, sizes)
    program, most = case.program, case.settings.max_world_size
    arguments = program.complete(small.candidate_arguments)
    return invalid(small.point, arguments, program.rules, most) is None


def _words(sizes: Mapping[str, int]) -> str:
    return listing(f"{name}={size}" for name, size in sizes.items())


def outside(
    own: Mapping[str, int], small: Mapping[str, int], point: Point, files: Iterable[Path]
) -> list[str]:
    """What a proof at small sizes does not cover of a test: sentences for its certificate.

    `own` are the test's sizes, and `files` the sources of its program.
    """
    text = (
        f"the test's own sizes, {_words(own)}: proved at {_words(small)}; docs/prove.md says why "
        "equality carries over, and what breaks it"
    )
    found, lost = [text], changed(own, small, point)
    if lost:
        more = f" and {len(lost) - _MAX_LOST} more" if len(lost) > _MAX_LOST else ""
        pairs = "; ".join(lost[:_MAX_LOST]) + more
        found.append(f"whether one divides the other is not kept by the small sizes: {pairs}")
    found += [
        f"a branch on a size, which may take another side at the test's own sizes: {place}"
        for file in files
        for place in size_branches(file, own)
    ]
    return found


def size_branches(file: Path, names: Iterable[str]) -> list[str]:
    """The conditions of a source file that order sizes, as "program.py:12: seq_len > 512".

    A size is one of the parameters `names`, or what `.shape`, `.size`, `.numel` or `len` give.
    Files that cannot be read or parsed have none.
    """
    try:
        source = read_file(file, max_bytes=_MAX_SOURCE).decode()
        tree = ast.parse(source)
    except (OSError, ValueError, SyntaxError, RecursionError):
        return []
    known, found = {*names}, []
    for node in ast.walk(tree):
        if isinstance(node, ast.If | ast.IfExp | ast.While | ast.Assert):
            tests = (each for each in ast.walk(node.test) if isinstance(each, ast.Compare))
            if any(_orders(each) and _mentions(each, known) for each in tests):
                found.append(f"{file.name}:{node.test.lineno}: {ast.unparse(node.test)}")
    return sorted(found)


def _orders(compared: ast.Compare) -> bool:
    return any(isinstance(each, ast.Lt | ast.LtE | ast.Gt | ast.GtE) for each in compared.ops)


def _mentions(compared: ast.Compare, names: set[str]) -> bool:
    """Whether a comparison reads a size."""
    for node in ast.walk(compared):
        match node:
            case ast.Name(id=name) if name in names:
                return True
            case ast.Attribute(attr=name) if name in {*names, "shape", "size", "numel"}:
                return True
            case ast.Call(func=ast.Name(id="len")):
                return True
    return False
