"""Names the attributes that belong to one rank although the whole process shares them.

A rank is a process, or one of several threads of a process of which one runs at a time.  In the
second case the launcher (`launch/threads/`) gives each rank its own values of the attributes that
are named here, and exchanges them when another rank runs.  In the first case nothing happens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import CellType
from typing import Any


class _Absent:
    """The value of an attribute that does not exist."""


ABSENT = _Absent()


@dataclass(frozen=True, slots=True)
class ModuleState:
    """Attributes of a module, which may not be imported yet; without `names`, all of them.

    A name may have dots: an attribute of a class, or `__defaults__` of a function, in the module.
    Each rank has its own dicts, lists and sets.

    With `copied`, each rank begins with a copy of any other value, too.
    """

    module: str
    names: tuple[str, ...] = ()
    copied: bool = False


@dataclass(frozen=True, slots=True)
class Replaced:
    """An attribute of an object that ranks replace while they run; `original` is the value before.

    The original is ABSENT if the object inherits the attribute.
    """

    owner: Any
    name: str
    original: Any


#: The attributes of modules, by module and names.
modules: dict[tuple[str, tuple[str, ...]], ModuleState] = {}

#: Called after each declaration: while ranks run, an adapter may declare what its framework keeps.
on_declared: list[Callable[[], None]] = []

#: The attributes that have been replaced, by the owner's id and name.  The owners stay alive.
replaced: dict[tuple[int, str], Replaced] = {}


def keep_per_rank(module: str, *names: str, copied: bool = False) -> None:
    """Declares attributes of a module as the state of one rank; without names, all of them."""
    modules[module, names] = ModuleState(module, names, copied)
    for each in on_declared:
        each()


def is_copied(module: str, name: str) -> bool:
    """Whether each rank begins with a copy of this attribute's value."""
    return any(
        each.copied and each.module == module and name in each.names for each in modules.values()
    )


def replacing(owner: Any, name: str) -> None:
    """Declares that this rank is about to replace an attribute; called each time before it does.

    `owner` is a module, a class, an object with a `__dict__`, or a cell of a closure.
    """
    where = id(owner), name
    if where not in replaced:
        replaced[where] = Replaced(owner, name, read(owner, name))


def read(owner: Any, name: str) -> Any:
    """The owner's own value of an attribute; ABSENT if it has none."""
    if isinstance(owner, CellType) or name == "__defaults__":  # which are in no __dict__
        return getattr(owner, name)
    return vars(owner).get(name, ABSENT)


def write(owner: Any, name: str, value: Any) -> None:
    """Gives an attribute a value that `read` returned."""
    if value is ABSENT:
        delattr(owner, name)
    else:
        setattr(owner, name, value)
