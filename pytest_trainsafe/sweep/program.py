"""A Program as the sweep uses it: its location, parameters and validity rules.

A function is identified by its import path, because the ranks import it themselves.  A program
given as a string is imported at collection, because its signature is needed to distinguish an
axis from a misspelt keyword.  Such a string consists of dotted identifiers on both sides of a
colon and names a function written in Python; nothing else is imported or called.
"""

from __future__ import annotations

import importlib
import inspect
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pytest_trainsafe.core.axes import Axis
from pytest_trainsafe.core.usage import excerpt, nearest, shown
from pytest_trainsafe.errors import InvalidProgramError, SweepError
from pytest_trainsafe.sweep.traits import Traits, traits_of
from pytest_trainsafe.sweep.validity import Rule

if TYPE_CHECKING:
    from pytest_trainsafe.launch import Script

_NO_DEFAULT = inspect.Parameter.empty
_SWEPT_TYPES = (bool, int, float, str)
#: The files of frames that import a module.
_IMPORTING = ("<frozen importlib", importlib.__file__)
#: The maximum length of an import path, and of the quoted message of a failed import.
_LONGEST_PATH, _LONGEST_CAUSE = 255, 500
#: The maximum length of a script's arguments; Linux limits each argument to 128 KiB.
MAX_SCRIPT_ARGUMENTS = 100_000


@dataclass(frozen=True, slots=True)
class Parameter:
    """A keyword parameter of a program, after the context."""

    name: str
    default: object = _NO_DEFAULT
    annotation: object = _NO_DEFAULT

    @property
    def required(self) -> bool:
        """Whether the parameter has no default."""
        return self.default is _NO_DEFAULT

    def axis(self, values: tuple[object, ...]) -> Axis:
        """This parameter as an axis.

        The type of the axis's values is the type of the parameter's default.  If there is no
        default or it is None, the type is the annotated one; if the annotation does not name int,
        float, bool or str, it is the type of `values`.  Raises SweepError for any other type.
        """
        if self.default is not _NO_DEFAULT and self.default is not None:
            kinds: tuple[type, ...] = (type(self.default),)
        else:
            named = _annotated(self.annotation)
            kinds = named or tuple(dict.fromkeys(type(value) for value in values))
        wrong = [kind.__name__ for kind in kinds if kind not in _SWEPT_TYPES]
        if wrong:
            raise SweepError(
                f"program parameter {self.name!r} is of type {excerpt(wrong[0])}; an axis takes "
                f"int, float, bool or str values. Pass it with args={{{self.name!r}: ...}} instead"
            )
        return Axis(self.name, kinds)


def _annotated(annotation: object) -> tuple[type, ...]:
    # With `from __future__ import annotations` an annotation is a string.  It is not evaluated,
    # because its names may be imported for type checkers only.
    text = annotation.__name__ if isinstance(annotation, type) else str(annotation)
    words = {word.strip() for word in text.split("|")} - {"None"}
    by_name = {kind.__name__: kind for kind in _SWEPT_TYPES}
    return tuple(by_name[word] for word in sorted(words)) if words <= set(by_name) else ()


@dataclass(frozen=True, slots=True)
class Program:
    """A training function or script.

    For a function, `path` is "package.module:function" and `file` is the file that defines it.
    For a script, `script` is the Script and `path` is its path.  `context` is the name of the
    function's first parameter, or "" if this parameter is positional-only.  `open_ended` is true if
    the function takes **kwargs, and so any keyword except the name in `context`.
    """

    path: str
    file: str = ""
    script: Script | None = None
    parameters: Mapping[str, Parameter] = field(default_factory=dict)
    open_ended: bool = False
    context: str = ""
    rules: tuple[Rule, ...] = ()
    traits: Traits = field(default_factory=Traits)

    @property
    def name(self) -> str:
        """The short name that reports use, such as `gpt.train`.

        For a script below the working directory it is the path from there.
        """
        module, _, function = self.path.partition(":")
        if function:
            return f"{module.rpartition('.')[2]}.{function}"
        path = os.path.relpath(self.path)
        return self.path if path.startswith(os.pardir) else path

    def complete(self, arguments: Mapping[str, object]) -> dict[str, object]:
        """`arguments` completed with the program's defaults, as its rules receive them."""
        defaults = {p.name: p.default for p in self.parameters.values() if not p.required}
        return {**defaults, **arguments}


def resolve(target: object) -> Program:
    """The Program that a marker's first argument names: a function, an import path, a Script."""
    if isinstance(target, str):
        return _of_function(_import(target), target)
    if inspect.isfunction(target):
        return _of_function(target, f"{target.__module__}:{target.__qualname__}")
    from pytest_trainsafe.launch import Script  # imports msgspec, as users of Script do

    if isinstance(target, Script):
        return _of_script(target)
    raise InvalidProgramError(
        f"a program is a function, an import path such as 'package.module:train', or "
        f"Script(path, args=[...]), not {shown(target)}"
    )


def _of_script(script: Script) -> Program:
    # msgspec checks the types of a Struct's fields only when it decodes one, so check them here.
    path: object = script.path
    args: object = script.args
    if not isinstance(path, (str, os.PathLike)) or not isinstance(os.fspath(path), str):
        raise InvalidProgramError(f"Script takes the path of a file as text, not {shown(path)}")
    text = str(path)
    if not os.path.isfile(text):
        where = "" if os.path.isabs(text) else f" in {os.getcwd()}"
        raise InvalidProgramError(
            f"there is no script {shown(text)}{where}; give an absolute path, or one "
            "relative to the folder in which pytest is started"
        )
    if not isinstance(args, (list, tuple)):
        raise InvalidProgramError(
            f"Script({shown(text)}) takes args as a list of words, not {shown(args)}"
        )
    size = 0
    for given in args:
        kind = type(given)
        if kind not in (str, int, float, bool) and not isinstance(given, os.PathLike):
            raise InvalidProgramError(
                f"Script({shown(text)}): args holds {shown(given)}; each must be text or a number"
            )
        if isinstance(given, int) and given.bit_length() > 64:
            raise InvalidProgramError(
                f"Script({shown(text)}): args holds {shown(given)}; integers have at most 64 bits"
            )
        word = str(given)
        if "\0" in word or not _encodable(word):
            raise InvalidProgramError(
                f"Script({shown(text)}): args holds {shown(word)}, with a character that a "
                "command line cannot contain"
            )
        size += len(word) + 1
    if size > MAX_SCRIPT_ARGUMENTS:
        raise InvalidProgramError(
            f"Script({shown(text)}): args has {size} characters, and the limit is "
            f"{MAX_SCRIPT_ARGUMENTS}; put them into a file and give its path"
        )
    return Program(path=text, script=script)


def _encodable(text: str) -> bool:
    try:
        os.fsencode(text)
    except UnicodeEncodeError:
        return False
    return True


def _import(path: str) -> Callable[..., Any]:
    module_name, colon, name = path.partition(":")
    parts = (*module_name.split("."), *name.split("."))
    if not colon or len(path) > _LONGEST_PATH or not all(map(str.isidentifier, parts)):
        raise InvalidProgramError(
            f"program {shown(path)} is not an import path; write 'package.module:function' with "
            f"names that Python can import, in at most {_LONGEST_PATH} characters"
        )
    try:
        found: Any = importlib.import_module(module_name)
        for part in name.split("."):
            # The default is not None, because None may be the attribute's value.
            found = getattr(found, part, _NO_DEFAULT)
            if found is _NO_DEFAULT:
                raise InvalidProgramError(
                    f"program {path!r}: module {module_name!r} has no {name!r}"
                    f"{nearest(name, vars(sys.modules[module_name]))}"
                )
    except InvalidProgramError:
        raise
    except (Exception, SystemExit) as error:  # the module's code may raise anything
        raise InvalidProgramError(
            f"program {path!r} cannot be imported: {_cause(error)}"
        ) from error
    if not inspect.isfunction(_unwrapped(found)):
        raise InvalidProgramError(
            f"program {path!r} is not a function but {excerpt(type(found).__name__)}; give "
            "a Python function at the top level of a module"
        )
    return found  # type: ignore[no-any-return]  # an attribute of an arbitrary module


def _cause(error: BaseException) -> str:
    """One line on a failed import: the message and the place, and the class if it is unusual.

    The place is left out if the module itself is not found.
    """
    try:
        words = str(error)
    except Exception:  # __str__ of a user's class may raise anything
        words = ""
    frames = list(traceback.extract_tb(error.__traceback__))
    if isinstance(error, ImportError):
        frames = [f for f in frames[1:] if not f.filename.startswith(_IMPORTING)]
        text = words
    else:
        text = ": ".join(filter(None, (type(error).__name__, words)))
    place = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    if isinstance(error, SyntaxError) and error.filename:  # the frames are those of the import
        text = f"{type(error).__name__}: {error.msg}"
        place = f" ({excerpt(str(error.filename), _LONGEST_CAUSE)}:{error.lineno})"
    return f"{excerpt(text, _LONGEST_CAUSE)}{place}"


def _unwrapped(function: Any) -> Any:
    """The function inside decorators such as functools.cache; the object itself if undecorated."""
    try:
        return inspect.unwrap(function)
    except Exception:  # a wrapper that wraps itself, or an object with attributes of its own
        return function


def _of_function(function: Callable[..., Any], path: str) -> Program:
    if "<" in path:
        raise InvalidProgramError(
            f"program {excerpt(path)!r} is defined inside a function; the ranks import it by name, "
            "so define it at the top level of a module"
        )
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError) as error:
        raise InvalidProgramError(
            f"program {path!r} has no readable signature: {excerpt(str(error))}"
        ) from error
    by_keyword = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    by_position = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.POSITIONAL_ONLY)
    if not parameters or parameters[0].kind not in by_position:
        raise InvalidProgramError(
            f"program {path!r} takes no context; its first parameter must be the context: write "
            f"def {function.__name__}(ctx), or give a script, Script(path), which gets ctx by "
            "pytest_trainsafe.context()"
        )
    own = parameters[1:]
    for parameter in own:
        if parameter.kind is inspect.Parameter.POSITIONAL_ONLY and parameter.default is _NO_DEFAULT:
            raise InvalidProgramError(
                f"program {path!r} takes {parameter.name!r} by position only, and arguments are "
                "passed by name; move it after the '/'"
            )
    return Program(
        path=path,
        file=inspect.getsourcefile(_unwrapped(function)) or "",
        parameters={
            p.name: Parameter(p.name, p.default, p.annotation) for p in own if p.kind in by_keyword
        },
        open_ended=any(p.kind is inspect.Parameter.VAR_KEYWORD for p in own),
        context=parameters[0].name if parameters[0].kind in by_keyword else "",
        rules=tuple(getattr(function, "trainsafe_rules", ())),
        traits=traits_of(function),
    )
