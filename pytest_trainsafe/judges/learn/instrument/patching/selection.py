"""Selects the APIs, and the attributes of training objects, that an observation asks for."""

from __future__ import annotations

import fnmatch
import functools
import importlib
import sys
from collections.abc import Container, Sequence

from pytest_trainsafe.errors import ArgumentError, ArgumentTypeError


def names_in(given: object, what: str) -> tuple[str, ...] | None:
    """The names in the argument `what` of `observe`; None for all.

    Raises ArgumentError if `given` is neither None nor a list of valid names.
    """
    if given is None:
        return None
    if isinstance(given, str) or not isinstance(given, Sequence | set | frozenset):
        raise ArgumentTypeError(
            f"observe({what}={given!r}): {what} must be None for all, or a list of names such as "
            + ("['torch.optim.Adam.step']" if what == "apis" else "['model.*.grad']")
        )
    for name in given:
        if not isinstance(name, str):
            raise ArgumentTypeError(f"observe({what}=...): {name!r} is not a str")
        if not name or name != name.strip() or ".." in name or name[0] == "." or name[-1] == ".":
            raise ArgumentError(
                f"observe({what}=...): {name!r} is not a valid name; pass a name whose parts are "
                "separated by single dots, without spaces around it, such as "
                + ("'torch.optim.Adam.step'" if what == "apis" else "'model.*.grad'")
            )
    return tuple(sorted(set(given))) if isinstance(given, set | frozenset) else tuple(given)


class Selection:
    """The observed APIs: those with a name in `apis`, and all below a module or class in `apis`.

    A name with a `*` is a pattern: "torch.optim.*.step" is the step of every optimizer.  If `apis`
    is None, every patched API is observed.
    """

    def __init__(self, apis: Sequence[str] | None) -> None:
        self.apis = apis
        names = [name for name in apis or () if "*" not in name]
        self._patterns = tuple(name for name in apis or () if "*" in name)
        self._exact = frozenset(names)
        self._prefixes = tuple(f"{name}." for name in names)
        self.takes = functools.cache(self._takes)

    def _takes(self, api: str) -> bool:
        """Whether calls of this API are recorded."""
        if self.apis is None or api in self._exact or api.startswith(self._prefixes):
            return True
        return any(fnmatch.fnmatchcase(api, pattern) for pattern in self._patterns)

    def may_take(self, owner: object, method: str, api: str) -> bool:
        """Whether calls of this function may be recorded, perhaps as the method of a subclass."""
        if self.takes(api):
            return True
        if not isinstance(owner, type):
            return False
        if any(pattern.rpartition(".")[2] == method for pattern in self._patterns):
            return True  # the name of each call, with the object's class, decides later
        for name in self._exact:
            head, _, last = name.rpartition(".")
            if (
                (last == method and _is_below(head, owner))
                or _is_below(name, owner)
                or owner.__module__.startswith(f"{name}.")
            ):
                return True
        return False


class Wanted:
    """Selects the attributes of training objects (called variables) to record.

    `patterns` has `fnmatch` patterns of `OBJECT.ATTRIBUTE` or `TYPE.ATTRIBUTE`, such as
    "model.*.grad"; None selects all.
    """

    def __init__(self, patterns: Sequence[str] | None) -> None:
        self._patterns = patterns
        self.takes = functools.cache(self._takes)

    @property
    def nothing(self) -> bool:
        """Whether no attribute of any object is recorded."""
        return self._patterns is not None and not self._patterns

    def _takes(self, name: str, kind: str, attribute: str) -> bool:
        if self._patterns is None:
            return True
        return any(
            fnmatch.fnmatchcase(f"{head}.{attribute}", pattern)
            for pattern in self._patterns
            for head in (name, kind)
        )


class Contents:
    """Selects the arguments and results of calls whose tensors are read.

    `names` are those of `trace.run_spec.Observe.contents`; None selects all.
    """

    def __init__(self, names: Sequence[str] | None) -> None:
        self._pairs = None if names is None else [name.rpartition(" ")[::2] for name in names]
        self.of = functools.cache(self._of)

    def _of(self, api: str) -> Container[str]:
        """The arguments and results ("self", "arg.NAME", "result") of an API that are read."""
        if self._pairs is None:
            return _EVERYTHING
        found = {place for name, place in self._pairs if fnmatch.fnmatchcase(api, name)}
        return _EVERYTHING if "*" in found else found


class _Everything:
    """Contains every text."""

    def __contains__(self, name: object) -> bool:
        return True


_EVERYTHING = _Everything()


def _is_below(name: str, owner: type) -> bool:
    found = resolved(name)
    return isinstance(found, type) and issubclass(found, owner)


@functools.cache
def resolved(name: str) -> object:
    """The object with a dotted name; None if there is none.  Imports modules as needed."""
    levels = name.split(".")
    for count in range(len(levels), 0, -1):
        module = ".".join(levels[:count])
        try:
            found: object = sys.modules.get(module) or importlib.import_module(module)
        except Exception:  # a module may fail in any way when it is imported
            continue
        for level in levels[count:]:
            found = getattr(found, level, None)
        return found
    return None
