"""A Program as the sweep sees it: where it lives, its parameters, its validity rules.

A function is named by import path, because the ranks import it themselves.  A program given
as an import path string is imported here, at collection: its signature is needed to tell an
axis from a typing error.
"""

from __future__ import annotations

import importlib
import inspect
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pytest_trainsafe.sweep.axes import Axis
from pytest_trainsafe.sweep.errors import SweepError
from pytest_trainsafe.sweep.traits import Traits, traits_of
from pytest_trainsafe.sweep.validity import Rule

if TYPE_CHECKING:
    from pytest_trainsafe.launch import Script

_NO_DEFAULT = inspect.Parameter.empty
_SWEPT_TYPES = (bool, int, str)


@dataclass(frozen=True, slots=True)
class Parameter:
    """A keyword parameter of a program, after the context."""

    name: str
    default: object = _NO_DEFAULT
    annotation: object = _NO_DEFAULT

    @property
    def required(self) -> bool:
        return self.default is _NO_DEFAULT

    def axis(self, values: tuple[object, ...]) -> Axis:
        """This parameter as an axis: of its default's type, else its annotation's, else `values`'.

        An axis is an int, a bool or a str; SweepError for a parameter of another type.
        """
        if self.default is not _NO_DEFAULT and self.default is not None:
            kinds: tuple[type, ...] = (type(self.default),)
        else:
            named = _annotated(self.annotation)
            kinds = named or tuple(dict.fromkeys(type(value) for value in values))
        wrong = [kind.__name__ for kind in kinds if kind not in _SWEPT_TYPES]
        if wrong:
            raise SweepError(
                f"program parameter {self.name!r} is of type {wrong[0]}; an axis takes int, bool "
                f"or str values. Pass it with args={{{self.name!r}: ...}} instead"
            )
        return Axis(self.name, kinds)


def _annotated(annotation: object) -> tuple[type, ...]:
    # Under `from __future__ import annotations` an annotation is text, and stays text here:
    # evaluating it could import what the program's module imports for type checkers only.
    text = annotation.__name__ if isinstance(annotation, type) else str(annotation)
    words = {word.strip() for word in text.split("|")} - {"None"}
    by_name = {kind.__name__: kind for kind in _SWEPT_TYPES}
    return tuple(by_name[word] for word in sorted(words)) if words <= set(by_name) else ()


@dataclass(frozen=True, slots=True)
class Program:
    """What is trained: `path` is "package.module:function" and `file` where it is defined.

    For a Script, `script` holds it and `path` is the script's own path.  `open_ended` says
    that the function takes any keyword.
    """

    path: str
    file: str = ""
    script: Script | None = None
    parameters: Mapping[str, Parameter] = field(default_factory=dict)
    open_ended: bool = False
    rules: tuple[Rule, ...] = ()
    traits: Traits = field(default_factory=Traits)

    @property
    def name(self) -> str:
        """The short name reports use: `gpt.train`."""
        module, _, function = self.path.partition(":")
        return f"{module.rpartition('.')[2]}.{function}" if function else self.path

    def complete(self, arguments: Mapping[str, object]) -> dict[str, object]:
        """`arguments` and the program's defaults for the rest: what its rules are asked about."""
        defaults = {p.name: p.default for p in self.parameters.values() if not p.required}
        return {**defaults, **arguments}


def resolve(target: object) -> Program:
    """The Program that a marker's first argument names: a function, an import path, a Script."""
    if isinstance(target, str):
        return _of_function(_import(target), target)
    if inspect.isfunction(target):
        return _of_function(target, f"{target.__module__}:{target.__qualname__}")
    from pytest_trainsafe.launch import Script  # imports msgspec, as its user has already

    if isinstance(target, Script):
        if not os.path.isfile(target.path):
            where = "" if os.path.isabs(target.path) else f" in {os.getcwd()}"
            raise SweepError(
                f"there is no script {str(target.path)!r}{where}; give its path from the folder "
                "in which pytest is started, or an absolute one"
            )
        return Program(path=str(target.path), script=target)
    raise SweepError(
        f"a program is a function, an import path such as 'package.module:train', or "
        f"Script(path, args=[...]), not {target!r}"
    )


def _import(path: str) -> Callable[..., Any]:
    module_name, colon, name = path.partition(":")
    if not (colon and module_name and name):
        raise SweepError(f"program {path!r} is not an import path; write 'package.module:function'")
    try:
        found: Any = importlib.import_module(module_name)
    except ImportError as error:
        raise SweepError(f"program {path!r} cannot be imported: {error}") from error
    for part in name.split("."):
        if not hasattr(found, part):
            raise SweepError(f"program {path!r}: module {module_name!r} has no {name!r}")
        found = getattr(found, part)
    if not callable(found):
        raise SweepError(f"program {path!r} is not a function but {type(found).__name__}")
    return found  # type: ignore[no-any-return]  # an attribute of an arbitrary module


def _of_function(function: Callable[..., Any], path: str) -> Program:
    if "<" in path:
        raise SweepError(
            f"program {path!r} is defined inside a function; the ranks import it by name, "
            "so define it at the top level of a module"
        )
    parameters = list(inspect.signature(function).parameters.values())
    by_keyword = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    by_position = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.POSITIONAL_ONLY)
    if not parameters or parameters[0].kind not in by_position:
        raise SweepError(f"program {path!r} takes no context; its first parameter must be one")
    own = parameters[1:]
    return Program(
        path=path,
        file=inspect.getsourcefile(inspect.unwrap(function)) or "",
        parameters={
            p.name: Parameter(p.name, p.default, p.annotation) for p in own if p.kind in by_keyword
        },
        open_ended=any(p.kind is inspect.Parameter.VAR_KEYWORD for p in own),
        rules=tuple(getattr(function, "trainsafe_rules", ())),
        traits=traits_of(function),
    )
