"""Every exception of the package has one base class, so that users can catch all of them."""

from __future__ import annotations

import builtins
import re
import warnings
from pathlib import Path

import pytest

import pytest_trainsafe
from pytest_trainsafe import errors

#: A warning is filtered, not caught.  `NoNamespace` is raised and caught by a file that also runs
#: alone, without the package, and never reaches a user.  `Stopped` ends the threads of a group, and
#: no program may catch it by accident.
OTHERS = {"TrainsafeWarning", "NoNamespace", "Stopped"}


CLASS = re.compile(r"^class (\w+)\(([^)]*)\):", re.MULTILINE)


def exceptions(root: Path) -> dict[str, set[str]]:
    """The bases of each class that derives from an exception, directly or not, by its name."""
    classes: dict[str, set[str]] = {}
    for folder in ("pytest_trainsafe", "fixtures", "invariants", "reference_models"):
        for file in (root / folder).rglob("*.py"):
            for name, bases in CLASS.findall(file.read_text(encoding="utf-8")):
                classes[name] = {base.strip().rpartition(".")[2] for base in bases.split(",")}
    raised = {name for name, value in vars(builtins).items() if is_exception(value)}
    return {name: classes[name] for name in derived(classes, raised | {"CollectError"})}


def derived(classes: dict[str, set[str]], bases: set[str]) -> set[str]:
    """The classes that derive from one of `bases`, directly or not."""
    known = set(bases)
    while new := {name for name, own in classes.items() if own & known} - known:
        known |= new
    return known & set(classes)


def is_exception(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, BaseException)


def test_every_public_exception_derives_from_trainsafe_error(root: Path) -> None:
    found = exceptions(root)
    ours = {"TrainsafeError", *derived(found, {"TrainsafeError"})}
    others = {name for name in found if not name.startswith("_")} - ours

    assert {"GroupFailure", "TraceError", "LayoutError", "ProgramError", "SweepError"} <= ours
    assert others == OTHERS


@pytest.mark.parametrize(
    ("name", "also"),
    [
        ("TrainsafeFailure", AssertionError),
        ("DeclarationError", ValueError),
        ("ArgumentError", ValueError),
        ("AnnotationError", ValueError),
        ("GroupFailure", Exception),
        ("TraceError", Exception),
    ],
)
def test_exceptions_that_users_catch_are_public(name: str, also: type) -> None:
    public = getattr(pytest_trainsafe, name)

    assert issubclass(public, pytest_trainsafe.TrainsafeError)
    assert issubclass(public, also)


@pytest.mark.parametrize(
    "name", ["SweepError", "InvalidProgramError", "SettingError", "UnknownCheckError"]
)
def test_exceptions_of_declarations_derive_from_declaration_error(name: str) -> None:
    assert issubclass(getattr(errors, name), errors.DeclarationError)


def test_a_wrong_type_is_a_type_error_and_an_argument_error() -> None:
    assert issubclass(errors.ArgumentTypeError, (TypeError, errors.ArgumentError))


def test_each_invalid_input_raises_its_own_exception_class() -> None:
    from pytest_trainsafe.config.checks import require_known
    from pytest_trainsafe.config.values import parse_seed
    from pytest_trainsafe.core.axes import AXES
    from pytest_trainsafe.fixtures.deepspeed.keys import DeepSpeedConfigError, check_keys
    from pytest_trainsafe.sweep.program import resolve

    with pytest.raises(errors.UnknownCheckError):
        require_known(["droput"])
    with pytest.raises(errors.SettingError):
        parse_seed("--trainsafe-seed", "-1")
    with pytest.raises(errors.SweepError):
        AXES["tp"].check(0)
    with pytest.raises(errors.InvalidProgramError):
        resolve("no.such:program")
    with pytest.raises(DeepSpeedConfigError):
        check_keys({"gradient_cliping": 1.0}, "the config")


def test_a_filter_for_trainsafe_warning_ignores_its_warnings() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", category=pytest_trainsafe.TrainsafeWarning)
        warnings.warn("something", errors.TrainsafeWarning, stacklevel=1)
