"""Notes the lines of a program that put modules into their places in a model.

Code that makes a model parallel replaces some of its modules.  The class of a module does not show
whether, and where, this code replaced it; the noted line does.  Reports name it.  Called by the
recorder.
"""

from __future__ import annotations

import contextlib
import sys
import weakref
from collections.abc import Iterable, Iterator
from types import FrameType

from torch import nn
from torch.nn.modules.module import register_module_module_registration_hook

from pytest_trainsafe.core.code_files import line_of, owner_of


class Placements:
    """The lines that registered modules with their parents, from `watched` to `lines`."""

    def __init__(self) -> None:
        #: By the id of a parent: the parent, and for each name the child's id and the line.
        self._noted: dict[int, tuple[weakref.ref[nn.Module], dict[str, tuple[int, str, str]]]] = {}
        self._finished = False

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Notes a line for each module that is registered in this context, until `lines`."""
        handle = register_module_module_registration_hook(self._on_registration)
        try:
            yield
        finally:
            handle.remove()

    def lines(self, modules: Iterable[nn.Module]) -> dict[nn.Module, tuple[str, str]]:
        """Maps the children of `modules` to the lines ("file:line") that put each into its place.

        A module that constructors put in place has the line that calls the outermost of these
        constructors, and the user's innermost line in these constructors, "" for none.  Modules
        without a known first line are left out.  Ends the noting.
        """
        found: dict[nn.Module, tuple[str, str]] = {}
        for parent in modules:
            owner, names = self._noted.get(id(parent), (None, {}))
            if owner is None or owner() is not parent:
                continue
            for name, child in parent.named_children():
                identity, line, inside = names.get(name, (0, "", ""))
                if line and identity == id(child):
                    found.setdefault(child, (line, inside))
        self._noted.clear()
        self._finished = True
        return found

    def _on_registration(self, parent: nn.Module, name: str, child: nn.Module | None) -> None:
        if child is None or self._finished:
            return
        owner, names = self._noted.get(id(parent), (None, {}))
        if owner is None or owner() is not parent:
            names = {}
            self._noted[id(parent)] = weakref.ref(parent), names
        names[name] = id(child), *_lines(sys._getframe(1))


def _lines(frame: FrameType | None) -> tuple[str, str]:
    """The user's innermost line that is not inside the constructor of a module, and one inside.

    The first is the innermost line outside of torch if the user has none; "" if there is no such
    line either.  The second is the user's innermost line in a constructor of a module, or "".
    """
    line, own, inside = "", False, ""
    while frame is not None:
        code = frame.f_code
        owner = owner_of(code.co_filename)
        if owner == "ours":
            break  # the recorder, which calls the program
        if code.co_name == "__init__" and _is_of_module(frame):
            if not inside:
                inside = line if own else line_of(frame) if owner == "project" else ""
            line, own = "", False
        elif not own and owner in ("project", "installed"):
            own = owner == "project"
            if own or not line:
                line = line_of(frame)
        frame = frame.f_back
    return line, inside


def _is_of_module(frame: FrameType) -> bool:
    """Whether the first argument of a frame's function is a module."""
    names = frame.f_code.co_varnames
    return bool(names) and isinstance(frame.f_locals.get(names[0]), nn.Module)
