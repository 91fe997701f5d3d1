"""Reads the text of a torch.fx graph, as `print_readable` writes it; the text is never executed.

The text is split into statements, and each is parsed with `ast` alone, so a hostile file costs no
more than its size.  Everything outside a whitelist is refused with its line.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

from pytest_trainsafe.core.untrusted import BadFileError, read_file, shown
from pytest_trainsafe.judges.refine.errors import GraphError
from pytest_trainsafe.judges.refine.graphs.fx_values import (
    RefusedError,
    Stated,
    annotation,
    dotted,
    value,
)
from pytest_trainsafe.judges.refine.graphs.graph import (
    CONSTANT,
    GETITEM,
    INPUT,
    SYMBOL,
    SYMBOLIC,
    Argument,
    Graph,
    Node,
    Ref,
    leaves,
)
from pytest_trainsafe.judges.refine.graphs.symbols import names_in

MAX_BYTES = 64 << 20
#: The most characters of one statement: the signature of a large model is its longest.
MAX_STATEMENT = 1 << 20
_DEEPEST = 40

#: Lines that may stand before the function.
_PREAMBLE = re.compile(
    r"import torch(\.fx\._pytree as fx_pytree)?|from torch import [\w, ]+|from math import inf"
    r"|\w+ ?: type|class (<lambda>|\w+)\(torch\.nn\.Module\):|class (<lambda>|\w+)\(Module\):"
)
_FILE = re.compile(r"# File: (.+?:\d+)(?: in |,|$)")
_OPERATOR = re.compile(r"torch\.ops\.(\w+\.\w+(\.\w+)?)")
_TREE = ("fx_pytree.tree_flatten_spec", "pytree.tree_unflatten")


def read_text(path: Path | str) -> str:
    """The text in a file.  Raises GraphError if it cannot be read."""
    try:
        return read_file(Path(path), max_bytes=MAX_BYTES).decode()
    except (BadFileError, OSError) as error:
        raise GraphError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise GraphError(f"{path} is not a text") from None


def read_fx(path: Path | str) -> Graph:
    """The graph in a file.  Raises GraphError if it cannot be read or has anything unknown."""
    return parse_fx(read_text(path), Path(path).name)


def parse_fx(text: str, name: str = "graph") -> Graph:
    """The graph that a text of torch.fx describes; `name` is what messages call it."""
    return _Reader(name).read(text)


class _Reader:
    def __init__(self, name: str) -> None:
        self.name = name
        self.line = 0
        self.source = ""
        self.nodes: list[Node] = []
        self.known: set[str] = set()
        self.stated: dict[str, Stated] = {}
        self.outputs: tuple[str | None, ...] | None = None

    def read(self, text: str) -> Graph:
        lines = text.split("\n")
        start = self._signature(lines)
        for number in range(start, len(lines)):
            self.line = number + 1
            stripped = lines[number].strip()
            if stripped.startswith("#"):
                self._comment(stripped)
            elif stripped:
                if self.outputs is not None:
                    raise self._refused("a line after `return`")
                self._statements(stripped)
        if self.outputs is None:
            raise GraphError(f"{self.name} has no `return`; the graph is truncated")
        return Graph(tuple(self.nodes), self.outputs, self.name)

    def _refused(self, what: str) -> GraphError:
        return GraphError(
            f"{self.name}:{self.line} has {shown(what)}; the text of a graph consists of the "
            "signature, calls of torch.ops, items of results, and `return`"
        )

    def _comment(self, text: str) -> None:
        if match := _FILE.match(text):
            self.source = match.group(1)

    def _signature(self, lines: list[str]) -> int:
        """Reads up to the function's signature, and returns the number of the next line."""
        for number, line in enumerate(lines):
            self.line = number + 1
            stripped = line.strip()
            if stripped.startswith("def "):
                return self._parameters(lines, number)
            if stripped and not stripped.startswith("#") and not _PREAMBLE.fullmatch(stripped):
                raise self._refused(f"the line {stripped[:60]!r} before the function")
        raise GraphError(f"{self.name} has no function; it is not the text of a torch.fx graph")

    def _parameters(self, lines: list[str], number: int) -> int:
        text = ""
        for end in range(number, len(lines)):
            text += lines[end].strip()
            if len(text) > MAX_STATEMENT:
                break
            if text.split("#")[0].rstrip().endswith(":"):
                self._define(text)
                return end + 1
        raise GraphError(f"{self.name}:{self.line}: the function's signature does not end")

    def _define(self, text: str) -> None:
        (function,) = self._parsed(f"{text} pass")
        if not isinstance(function, ast.FunctionDef):
            raise self._refused("no function")
        given = function.args
        if given.vararg or given.kwarg or given.kwonlyargs or given.defaults or given.posonlyargs:
            raise self._refused("parameters with defaults or stars")
        for parameter in given.args:
            if parameter.arg != "self":
                self._add(parameter.arg, INPUT, (), parameter.annotation)

    def _parsed(self, text: str) -> list[ast.stmt]:
        if len(text) > MAX_STATEMENT or _deep(text):
            raise self._refused("a statement that is too long or too deep")
        try:
            return ast.parse(text).body
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            raise self._refused("a line that is not a statement") from None

    def _statements(self, text: str) -> None:
        try:
            for statement in self._parsed(text):
                self._statement(statement)
        except RefusedError as error:
            raise self._refused(str(error)) from None

    def _statement(self, statement: ast.stmt) -> None:
        if isinstance(statement, ast.Return):
            self._return(statement.value)
        elif isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            if statement.value is None:
                self.stated[statement.target.id] = annotation(statement.annotation)
            else:
                self._assign(statement.target.id, statement.value, statement.annotation)
        elif isinstance(statement, ast.Assign):
            self._assign_all(statement)
        elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
            self._assign(f"unnamed_{len(self.nodes)}", statement.value, None)
        else:
            raise RefusedError(f"a statement of the form {type(statement).__name__}")

    def _assign_all(self, statement: ast.Assign) -> None:
        if isinstance(statement.value, ast.Constant) and statement.value.value is None:
            return  # torch.fx frees results by `a = b = None`.
        (target, *others) = statement.targets
        if isinstance(target, ast.Tuple) and isinstance(statement.value, ast.Call):
            if dotted(statement.value.func) != _TREE[0]:
                raise RefusedError("an assignment to several names")
            for each in target.elts:
                if isinstance(each, ast.Name) and each.id not in self.known:
                    self._add(each.id, INPUT, (), None)
            return
        if others or not isinstance(target, ast.Name):
            raise RefusedError("an assignment to something that is not one name")
        self._assign(target.id, statement.value, None)

    def _assign(self, name: str, expression: ast.expr, stated: ast.expr | None) -> None:
        if isinstance(expression, ast.Call):
            called = dotted(expression.func)
            match = _OPERATOR.fullmatch(called or "")
            if match is None:
                raise RefusedError(f"a call of {(called or 'something unnamed')[:60]}")
            args = tuple(value(each, self.known) for each in expression.args)
            kwargs = {
                each.arg: value(each.value, self.known)
                for each in expression.keywords
                if each.arg is not None
            }
            if len(kwargs) != len(expression.keywords):
                raise RefusedError("a call with two stars")
            self._add(name, match.group(1), args, stated, kwargs)
        elif isinstance(expression, ast.Subscript) and isinstance(expression.value, ast.Name):
            whole, index = value(expression.value, self.known), value(expression.slice, self.known)
            if not isinstance(index, int):
                raise RefusedError("an index that is not an integer")
            self._add(name, GETITEM, (whole, index), stated)
        elif isinstance(expression, ast.Attribute):
            path = dotted(expression) or ""
            if not path.startswith("self."):
                raise RefusedError(f"the attribute {path[:60]}")
            self._add(name, CONSTANT, (path.removeprefix("self."),), stated)
        elif isinstance(expression, ast.BinOp | ast.Compare | ast.UnaryOp):
            text = ast.unparse(expression)
            if annotation(stated)[0] != SYMBOLIC or not names_in(text) <= self.known:
                raise RefusedError("arithmetic that is not of sizes that earlier lines define")
            self._add(name, SYMBOL, (text,), stated)
        else:
            raise RefusedError(f"an assignment of the form {type(expression).__name__}")

    def _add(
        self,
        name: str,
        operator: str,
        args: tuple[Argument, ...],
        stated: ast.expr | None,
        kwargs: dict[str, Argument] | None = None,
    ) -> None:
        known = annotation(stated) if stated else self.stated.get(name, (None, None, None))
        dtype, shape, sizes = known
        source = "" if operator == INPUT else self.source
        self.nodes.append(
            Node(name, operator, args, kwargs or {}, dtype, shape, source, "", self.line, sizes)
        )
        self.known.add(name)

    def _return(self, expression: ast.expr | None) -> None:
        if isinstance(expression, ast.Call) and dotted(expression.func) == _TREE[1]:
            expression = expression.args[0] if expression.args else None
        if expression is None:
            raise RefusedError("a `return` of nothing")
        found = value(expression, self.known)
        self.outputs = tuple(each.name if isinstance(each, Ref) else None for each in leaves(found))


def _deep(text: str) -> bool:
    """Whether brackets nest deeper than any graph's; text in quotes counts too."""
    depth = 0
    for letter in text:
        if letter in "([{":
            depth += 1
            if depth > _DEEPEST:
                return True
        elif letter in ")]}":
            depth -= 1
    return False
