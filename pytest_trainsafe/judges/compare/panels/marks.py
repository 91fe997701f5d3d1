"""The lines that take part in a fault beside the line that a place names, in the lines shown.

The code that a place names is often a call, and the statement at fault is near it.  What is marked
follows from the text of the function and from what is known of the fault.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Iterator

import msgspec

from pytest_trainsafe.judges.compare.localize.code.ran import UNKNOWN, Ran
from pytest_trainsafe.judges.compare.panels.state import kept_state
from pytest_trainsafe.judges.compare.panels.steps import (
    apart,
    loops,
    names_read,
    never_raised,
    result_of,
    steps_to,
    tell_apart,
    uses_of,
)
from pytest_trainsafe.report.called import called_at
from pytest_trainsafe.report.panels import Code
from pytest_trainsafe.report.syntax import Function, parsed

#: Parts of the names of calls that exchange data, or wait for it.
_EXCHANGES = ("all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast", "ring")
_WAITS = frozenset({"wait", "synchronize"})

#: Names of calls that read the memory of a tensor by other strides or sizes than its own.
_STRIDES = frozenset({"as_strided", "as_strided_", "resize_", "set_", "untyped_storage"})

#: Names of calls that scale a tensor in place, or divide it.
_SCALES = frozenset({"mul_", "div_", "mul", "div", "true_divide"})


def with_marks(
    code: Code,
    place: str,
    others: Collection[str],
    *,
    scales: bool = False,
    reduces: bool = False,
    set_up: bool = False,
    ran: Ran = UNKNOWN,
) -> Code:
    """The lines with those marked that take part, beside the one that `place` names.

    `others` are other places of the same fault.  `scales` says that a factor is wrong, and
    `reduces` that the reduction of gradients is: divisions near it are marked, and the conditions
    on which it runs.  `set_up` says that the line sets up a module: lines that make what is given
    to it are marked.  Of a whole function, the calls that exchange data are marked, the lines that
    use what they give, and the calls that read memory by strides.  Of a method, the lines that use
    what its object keeps for later calls, and those of its class that change it, are marked.  Lines
    that `ran` shows not to have run are not; those of them that are shown are `idle`.  The
    conditions and loops on which marked lines run, and the jumps that may end the function before
    them, are `steps` on the way, and so are the loops of a whole function, and the statements that
    make what it returns if no other line of it is marked.  There are none if they would be nearly
    all its lines.
    """
    path = place.rpartition(":")[0]
    found = {int(each.rpartition(":")[2]) for each in others if each.rpartition(":")[0] == path}
    unknown: set[int] = set()
    idle: set[int] = set()
    function = _function_at(path, code.marked)
    if function is not None:
        if function.lineno == code.marked:
            found = {line for line in found if line > code.marked}  # not its decorators
            exchanges = {*_lines(function, lambda call: _leads_to_exchange(path, call))}
            unknown = {line for line in exchanges if ran.of(path, function, line) is None}
            idle = {*_in_the_other_arm(path, function, unknown, ran)}
            unknown -= {*apart(function, idle, unknown), *idle}
            found |= {*exchanges, *uses_of(function, exchanges - idle)}
            found |= {*_lines(function, lambda call: _name(call) in _STRIDES)}
        found |= {*kept_state(parsed(path), function)}
        if scales:
            found |= {*_divisors(function)}
        if reduces and function.lineno != code.marked:
            found |= {*conditions(function, code.marked)}
        if set_up:
            found |= {*_given(function, code.marked)}
        idle |= {*never_raised(function)} if ran is not UNKNOWN else set()
        idle |= {
            line
            for line in range(function.lineno + 1, (function.end_lineno or 0) + 1)
            if ran.of(path, function, line) is False
        }
        found -= idle
    shown = range(code.first, code.first + len(code.lines))
    also = tuple(sorted(line for line in found - {code.marked} if line in shown))
    code = msgspec.structs.replace(code, also=also)
    if function is not None:
        steps = {*steps_to(function, (code.marked, *also))}
        inside = [line for line in also if function.lineno <= line <= (function.end_lineno or 0)]
        if function.lineno == code.marked:
            steps |= {*(loops(function) if inside else result_of(function))}
        steps -= {*idle, code.marked, *also}
        if not tell_apart(function, steps):
            steps = set()
        code = msgspec.structs.replace(
            code,
            steps=tuple(sorted(steps & {*shown})),
            idle=tuple(sorted(idle & {*shown})),
            runs=ran.where(path, code.marked),
        )
    if doubted := sorted(unknown & {*also}):
        lines = f"line{'s' * (len(doubted) > 1)} {', '.join(map(str, doubted))}"
        note = f"{lines}, in a branch, not known to have run"
        code = msgspec.structs.replace(code, note=f"{code.note}; {note}" if code.note else note)
    return code


def _function_at(path: str, line: int) -> Function | None:
    """The innermost function around a line of a file; None if there is none, or no file."""
    around = [
        node
        for node in ast.walk(parsed(path))
        if isinstance(node, Function) and node.lineno <= line <= (node.end_lineno or 0)
    ]
    return max(around, key=lambda node: node.lineno, default=None)


def _lines(function: Function, wanted: Callable[[ast.Call], bool]) -> list[int]:
    calls = (node for node in ast.walk(function) if isinstance(node, ast.Call))
    return [call.lineno for call in calls if wanted(call)]


def _name(call: ast.Call) -> str:
    """The last part of what is called: "all_reduce" of `dist.all_reduce(x)`."""
    function = call.func
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _exchanges(call: ast.Call) -> bool:
    name = _name(call)
    return name in _WAITS or any(part in name for part in _EXCHANGES)


def _leads_to_exchange(path: str, call: ast.Call) -> bool:
    """Whether a call exchanges data itself, or is one of an autograd function that does."""
    if _exchanges(call) or _name(call) != "apply":
        return _exchanges(call)
    return any(_lines(each, _exchanges) for _, each in _called(path, call.lineno))


def _in_the_other_arm(
    path: str, function: Function, unknown: Collection[int], ran: Ran
) -> Iterator[int]:
    """The lines of these that call functions whose collectives did not run, and did in another arm.

    A collective that runs has its line in the trace, but not always the line that led to it.
    """
    collectives = {line: {*_collectives_of(path, line)} for line in unknown}
    ran_there = {n for n, found in collectives.items() if any(ran.any_of(f, at) for f, at in found)}
    rest = {line for line, found in collectives.items() if found} - ran_there
    yield from apart(function, ran_there, rest)


def _collectives_of(path: str, line: int) -> Iterator[tuple[str, range]]:
    """The lines of the collectives that the functions have which a line calls."""
    for file, function in _called(path, line):
        calls = [node for node in ast.walk(function) if isinstance(node, ast.Call)]
        for call in calls:
            exchanges = _exchanges(call) and _name(call) not in _WAITS
            if exchanges and not _called(file, call.lineno):  # a function of torch
                yield file, range(call.lineno, (call.end_lineno or call.lineno) + 1)


def _called(path: str, line: int) -> list[tuple[str, Function]]:
    """The functions of the program that a line itself calls, with their files."""
    places = [
        at for at, caller in called_at(f"{path}:{line}").items() if caller == f"{path}:{line}"
    ]
    found = [(*at.rpartition(":")[::2],) for at in places]
    return [(file, each) for file, at in found if (each := _function_at(file, int(at))) is not None]


def _divisors(function: Function) -> Iterator[int]:
    """The lines that scale or divide in a function, and those that make what they divide by."""
    used: set[str] = set()
    for node in ast.walk(function):
        by: list[ast.expr] = []
        if isinstance(node, ast.Call) and _name(node) in _SCALES:
            by = node.args
        elif isinstance(node, ast.BinOp | ast.AugAssign) and isinstance(node.op, ast.Div):
            by = [node.right if isinstance(node, ast.BinOp) else node.value]
        if by:
            assert isinstance(node, ast.expr | ast.stmt)
            yield node.lineno
            used |= {name for each in by for name in names_read(each)}
    yield from _assigned(function, used)


def conditions(function: Function, line: int) -> Iterator[int]:
    """The lines of the innermost condition on which a line of the function runs."""
    around = [
        node
        for node in ast.walk(function)
        if isinstance(node, ast.If) and node.lineno < line <= (node.end_lineno or 0)
    ]
    if around:
        yield max(node.lineno for node in around)


def _given(function: Function, line: int) -> Iterator[int]:
    """The lines of a function that make what the statement at a line is given, and its keywords."""
    around = [
        node
        for node in ast.walk(function)
        if isinstance(node, ast.stmt)
        and not isinstance(node, Function | ast.For | ast.If | ast.With | ast.While)
        and node.lineno <= line <= (node.end_lineno or 0)
    ]
    if around:
        statement = max(around, key=lambda node: node.lineno)
        yield from range(statement.lineno, (statement.end_lineno or line) + 1)
        yield from _assigned(function, {*names_read(statement)})


def _assigned(function: Function, names: Collection[str]) -> Iterator[int]:
    """The lines of a function that assign one of some names."""
    for node in ast.walk(function):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id in names:
            yield node.lineno
