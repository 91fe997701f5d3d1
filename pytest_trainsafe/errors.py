"""The errors of this package, which have a common base class, and its category of warnings.

    TrainsafeError
    ├── DeclarationError (ValueError)        a wrong declaration: in a test, option or configuration
    │   ├── SweepError                       axes, their values, Points, or arguments of a marker
    │   ├── InvalidProgramError              a program that ranks could not import or call
    │   ├── SettingError                     the value of an option, an ini key or a marker setting
    │   │   └── UnknownCheckError            a name in `accept` that is not a check's
    │   └── DeepSpeedConfigError             `pytest_trainsafe.fixtures.deepspeed`
    ├── ArgumentError (ValueError)           a wrong argument of a function of this package
    │   ├── ArgumentTypeError (TypeError)    an argument of a wrong type
    │   └── RelationError                    a metamorphic relation that does not apply at a Point
    ├── TrainsafeFailure (AssertionError)    `pytest_trainsafe.assertions`
    ├── GroupFailure                         `pytest_trainsafe.launch`
    ├── TraceError                           a recorded trace that cannot be used
    ├── ReplayError                          a replay checkpoint that cannot be used
    │   └── ReplayMismatchError              a replay that draws other numbers than its original
    ├── UnknownAxisError (AttributeError)    an axis that a Point does not have
    └── AnnotationError, LayoutError, ProgramError and others, in the modules that raise them

Every public exception class of the package derives from TrainsafeError; a test checks it.

The text of an error or a warning may quote what a program chose, and pytest prints it: it is
escaped here, for all classes.
"""

from __future__ import annotations

from pytest_trainsafe.printable import printable

#: The most characters of an exception in one line.
LONGEST_LINE = 400


class TrainsafeError(Exception):
    """The base of every exception that pytest-trainsafe raises; its text is printable.

    `line` is the finding in one line, which pytest's short summary and JUnit files show; "" if the
    exception's text is short enough.
    """

    line = ""

    def __str__(self) -> str:
        return printable(super().__str__())


class DeclarationError(TrainsafeError, ValueError):
    """A declaration is wrong; the message names the input, what is allowed and what to do.

    If it is raised at collection, pytest reports a usage error of the test or the command line.
    """


class SweepError(DeclarationError):
    """The axes, the Points or the arguments of a marker are wrong."""


class InvalidProgramError(DeclarationError):
    """A program cannot be trained: it is not found, not importable by ranks, or not callable."""


class SettingError(DeclarationError):
    """An option, an ini key or a setting of a marker has a value that it does not take."""


class UnknownCheckError(SettingError):
    """A name in `accept` is not the name of a check."""


class ArgumentError(TrainsafeError, ValueError):
    """A function of this package was given a value that it does not take."""


class ArgumentTypeError(ArgumentError, TypeError):
    """A function was given an argument of a wrong type; the message says what to pass."""


class RelationError(ArgumentError):
    """A metamorphic relation does not apply to a program at a Point; the message says why."""


class TraceError(TrainsafeError):
    """A trace cannot be used; the message names the file, what is wrong, and what to do."""


class ReplayError(TrainsafeError):
    """A replay checkpoint cannot be used, and nothing was loaded; the message says why."""


class ReplayMismatchError(ReplayError):
    """A replay draws other random numbers than its original; the message names the first draw."""


class UnknownAxisError(TrainsafeError, AttributeError):
    """A Point has no axis of this name; the message lists its axes and how to give a default."""


def in_one_line(error: BaseException) -> str:
    """An exception in one printable line: its `line`, else its class and the start of its text."""
    line = error.line if isinstance(error, TrainsafeError) else ""
    start = str(error).lstrip().partition("\n")[0]
    text = " ".join((line or f"{type(error).__name__}: {start}").split())
    return printable(text if len(text) <= LONGEST_LINE else f"{text[: LONGEST_LINE - 3]}...")


class TrainsafeWarning(UserWarning):
    """The category of the warnings of pytest-trainsafe, for pytest's `filterwarnings`."""

    def __str__(self) -> str:
        return printable(super().__str__())
