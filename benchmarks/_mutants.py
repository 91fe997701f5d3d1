"""Generates single mutations of source files from their syntax trees.

A mutation replaces the text of one node and keeps all other text. Code that only checks or
describes is not mutated: assertions, raised errors, annotations, imports and docstrings. Nor are
the branches that plant a bug.
"""

from __future__ import annotations

import ast
import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

#: The number of mutations of each file with which a sample begins.
FEW = 2

#: Functions that communicate with other ranks or shard a tensor, and that return their first
#: argument if there is nothing to do.
COLLECTIVES = frozenset(
    {
        *("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "split", "pass_on"),
        *("copy_into", "reduce_out", "gather_into", "scatter_out", "exchange"),
        *("split_into_shards", "join_shards", "take_part", "put_in_order"),
    }
)

#: Methods that return their object in another form.
_FORMS = frozenset({"detach", "contiguous", "clone", "float", "view_as", "masked_fill", "to", "mT"})

#: Each axis of ranks, with the axes that replace it in mutations.
_GROUPS = {
    "tp": ("cp",),
    "cp": ("tp", "dp"),
    "dp": ("cp",),
    "pp": ("tp",),
    "ep": ("edp",),
    "edp": ("dp_cp",),
    "dp_cp": ("dp", "edp"),
    "embedding": ("pp",),
}

_BINARY: dict[type[ast.operator], str] = {
    ast.Add: "-",
    ast.Sub: "+",
    ast.Mult: "/",
    ast.Div: "*",
    ast.FloorDiv: "*",
    ast.Mod: "//",
    ast.BitOr: "&",
    ast.BitAnd: "|",
}

_COMPARED: dict[type[ast.cmpop], str] = {
    ast.Lt: "<=",
    ast.LtE: "<",
    ast.Gt: ">=",
    ast.GtE: ">",
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.Is: "is not",
    ast.IsNot: "is",
    ast.In: "not in",
    ast.NotIn: "in",
}


@dataclass(frozen=True, slots=True)
class Mutation:
    """One change of one file: the text from `start` to `end` becomes `after`.

    `file` is relative to the mutated folder. `lines` are the lines of the changed node, `where` is
    its class and function, and `kind` names the kind of change. `number` distinguishes equal
    changes in one function.
    """

    file: str
    where: str
    kind: str
    before: str
    after: str
    start: int
    end: int
    lines: range
    number: int = 0

    @property
    def id(self) -> str:
        """A name that depends on the file's name and the function, but not on folders or lines."""
        again = f" #{self.number}" if self.number else ""
        place = f"{Path(self.file).name} {self.where}"
        return f"{place}: {self.kind}: {self.before} -> {self.after}{again}"

    def applied(self, source: str) -> str:
        """The source with the change made."""
        return source[: self.start] + self.after + source[self.end :]


def mutations(folder: Path) -> list[Mutation]:
    """Every mutation of the modules in a folder and its subfolders that compiles.

    No two modules may have the same name, because the ids of mutations begin with it.
    """
    modules = sorted(file for file in folder.rglob("*.py") if file.name != "__init__.py")
    assert len({file.name for file in modules}) == len(modules), "two modules have the same name"
    found: list[Mutation] = []
    for file in modules:
        name = file.relative_to(folder).as_posix()
        found += mutations_of(file.read_text(encoding="utf-8"), name)
    return found


def mutations_of(source: str, file: str) -> list[Mutation]:
    """Every mutation of one file."""
    return _File(source, file).mutations()


def sample(found: Sequence[Mutation], count: int, seed: int) -> list[Mutation]:
    """A random sample of `count` mutations: first a few of every file, then equally many per kind.

    A longer sample with the same seed begins with the shorter one.
    """
    generator = random.Random(seed)
    shuffled = sorted(found, key=lambda mutation: mutation.id)
    generator.shuffle(shuffled)
    first = _in_turn(shuffled, lambda mutation: mutation.file)
    few = len({mutation.file for mutation in found}) * FEW
    chosen = first[:few]
    taken = {mutation.id for mutation in chosen}
    rest = [mutation for mutation in shuffled if mutation.id not in taken]
    return [*chosen, *_in_turn(rest, lambda mutation: mutation.kind)][:count]


def _in_turn(found: Sequence[Mutation], group: Callable[[Mutation], str]) -> list[Mutation]:
    """The mutations in turn by group: one of each group, then a second one of each, and so on."""
    seen: dict[str, int] = {}
    placed = []
    for mutation in found:
        place = seen[group(mutation)] = seen.get(group(mutation), 0) + 1
        placed.append((place, mutation))
    return [mutation for _, mutation in sorted(placed, key=lambda pair: pair[0])]


Change = tuple[str, ast.AST, str]


class _File:
    def __init__(self, source: str, file: str) -> None:
        self.source, self.file = source, file
        self.tree = ast.parse(source)
        self.offsets = [0]
        for line in source.splitlines(keepends=True):
            self.offsets.append(self.offsets[-1] + len(line))

    def mutations(self) -> list[Mutation]:
        found: dict[tuple[int, int, str], Mutation] = {}
        count: dict[str, int] = {}
        for where, (kind, node, after) in self.visit(self.tree, ()):
            start, end = self.span(node)
            before = self.source[start:end]
            if after == before or (start, end, after) in found:
                continue
            lines = range(node.lineno, (node.end_lineno or node.lineno) + 1)  # type: ignore[attr-defined]
            made = Mutation(
                self.file,
                ".".join(where) or "module",
                kind,
                _short(before),
                _short(after),
                start,
                end,
                lines,
            )
            number = count.get(made.id, 0)
            count[made.id] = number + 1
            whole = Mutation(
                self.file, made.where, kind, made.before, after, start, end, lines, number
            )
            if _compiles(whole.applied(self.source)):
                found[start, end, after] = whole
        return list(found.values())

    def span(self, node: ast.AST) -> tuple[int, int]:
        place: tuple[int, int, int, int] = (
            node.lineno,  # type: ignore[attr-defined]
            node.col_offset,  # type: ignore[attr-defined]
            node.end_lineno,  # type: ignore[attr-defined]
            node.end_col_offset,  # type: ignore[attr-defined]
        )
        return self.offsets[place[0] - 1] + place[1], self.offsets[place[2] - 1] + place[3]

    def text(self, node: ast.AST) -> str:
        start, end = self.span(node)
        return self.source[start:end]

    def visit(
        self, node: ast.AST, where: tuple[str, ...]
    ) -> Iterator[tuple[tuple[str, ...], Change]]:
        """Yields the changes of a node and its children, each with its enclosing definitions."""
        if isinstance(node, ast.Import | ast.ImportFrom | ast.Assert | ast.Raise):
            return
        if isinstance(node, ast.If) and "TYPE_CHECKING" in self.text(node.test):
            return
        if isinstance(node, ast.If) and "planted(" in self.text(node.test):
            for child in node.orelse:
                yield from self.visit(child, where)
            return
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            where = (*where, node.name)
        for change in self.changes(node):
            yield where, change
        for field, value in ast.iter_fields(node):
            if field in ("annotation", "returns", "decorator_list", "bases"):
                continue
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST) and not _describes(child):
                    yield from self.visit(child, where)

    def changes(self, node: ast.AST) -> Iterator[Change]:
        for operator in (_calls, _axes, _constants, _slices, _operations, _conditions, _statements):
            yield from operator(node, self.text)


Text = Callable[[ast.AST], str]


def _calls(node: ast.AST, text: Text) -> Iterator[Change]:
    if not isinstance(node, ast.Call):
        return
    name = node.func.attr if isinstance(node.func, ast.Attribute) else text(node.func)
    if name in COLLECTIVES and node.args and not isinstance(node.func, ast.Attribute):
        first = text(node.args[0])
        yield "drop a collective", node, first
        if first.isprintable():
            yield "double a collective", node, text(node).replace(first, text(node), 1)
        if name == "all_reduce" and len(node.args) == 2:
            maximum = '__import__("torch").distributed.ReduceOp.MAX'
            yield "reduce op", node, f"{text(node)[:-1]}, {maximum})"
    if isinstance(node.func, ast.Attribute) and name in _FORMS and not node.keywords:
        yield "drop a method", node, text(node.func.value)


def _axes(node: ast.AST, text: Text) -> Iterator[Change]:
    if not isinstance(node, ast.Attribute) or not isinstance(node.ctx, ast.Load):
        return
    if node.attr in _GROUPS and text(node.value).endswith(("axes", "self")):
        for other in _GROUPS[node.attr]:
            yield "another group", node, f"{text(node.value)}.{other}"
    if text(node).endswith("ReduceOp.MAX"):
        yield "reduce op", node, text(node)[:-3] + "SUM"
    if text(node).endswith("ReduceOp.SUM"):
        yield "reduce op", node, text(node)[:-3] + "MAX"


def _constants(node: ast.AST, text: Text) -> Iterator[Change]:
    if not isinstance(node, ast.Constant):
        return
    if isinstance(node.value, bool):
        yield "constant", node, str(not node.value)
    elif isinstance(node.value, int):
        yield "constant", node, str(node.value + 1)
        yield "constant", node, f"({node.value - 1})"
    elif isinstance(node.value, float):
        yield "constant", node, f"({node.value} * 2)"


def _slices(node: ast.AST, text: Text) -> Iterator[Change]:
    if isinstance(node, ast.Slice):
        for bound in (node.lower, node.upper):
            if bound is not None and not isinstance(bound, ast.Constant):
                yield "slice", bound, f"{text(bound)} + 1"
        if node.lower is not None and node.upper is not None:
            yield "slice", node, f":{text(node.upper)}"
    if (
        isinstance(node, ast.Subscript)
        and isinstance(node.ctx, ast.Load)
        and isinstance(node.slice, ast.Attribute)
    ):
        yield "offset", node.slice, f"{text(node.slice)} - 1"


def _operations(node: ast.AST, text: Text) -> Iterator[Change]:
    if isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
        left, right = text(node.left), text(node.right)
        yield "operator", node, f"({left}) {_BINARY[type(node.op)]} ({right})"
        yield "drop an operand", node, left
        if not isinstance(node.op, ast.Sub | ast.Div | ast.FloorDiv | ast.Mod):
            yield "drop an operand", node, right
    if isinstance(node, ast.UnaryOp) and not isinstance(node.operand, ast.Constant):
        yield "drop an operator", node, text(node.operand)


def _conditions(node: ast.AST, text: Text) -> Iterator[Change]:
    if isinstance(node, ast.If | ast.IfExp | ast.While):
        yield "branch", node.test, "True" if not isinstance(node, ast.While) else "False"
        yield "branch", node.test, "False"
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        left, right = text(node.left), text(node.comparators[0])
        yield "condition", node, f"{left} {_COMPARED[type(node.ops[0])]} {right}"
    if isinstance(node, ast.BoolOp):
        word = "or" if isinstance(node.op, ast.And) else "and"
        yield "condition", node, f" {word} ".join(f"({text(value)})" for value in node.values)


def _statements(node: ast.AST, text: Text) -> Iterator[Change]:
    if isinstance(node, ast.Expr) and not isinstance(node.value, ast.Constant):
        yield "drop a statement", node, "pass"
    if isinstance(node, ast.AugAssign):
        yield "drop a statement", node, "pass"
    if isinstance(node, ast.Assign) and _assigns_again(node, text):
        yield "drop a statement", node, "pass"


def _assigns_again(node: ast.Assign, text: Text) -> bool:
    """Whether the target of an assignment probably exists without it.

    It is an attribute, an item, or a name that occurs in the assigned value.
    """
    (target, *_), value = node.targets, text(node.value)
    if isinstance(target, ast.Name):
        return re.search(rf"\b{target.id}\b", value) is not None
    return isinstance(target, ast.Attribute | ast.Subscript)


def _describes(node: ast.AST) -> bool:
    """Whether a node is a docstring or another string that is a statement of its own."""
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def _short(text: str) -> str:
    return " ".join(text.split())


def _compiles(source: str) -> bool:
    try:
        compile(source, "mutant", "exec")
    except (SyntaxError, ValueError):
        return False
    return True
