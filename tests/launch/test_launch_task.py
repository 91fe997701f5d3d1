"""A Task refuses, when it is made, what its ranks could not import or receive."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pytest_trainsafe.launch import NotDataError, Script, Task
from pytest_trainsafe.launch.loading import load_function
from pytest_trainsafe.launch.task import Function


def program(x: object = None) -> str:
    """A function of this file, for tasks."""
    return "found"


class Holder:
    """Has functions of both kinds."""

    @staticmethod
    def static() -> None:
        """A function without an object."""

    def method(self) -> None:
        """A function with an object."""


def test_a_function_is_named_by_its_import_path_and_file() -> None:
    task = Task.of(program, 1, (2, 3), world_size=2, x={"y": None})
    assert task.target == Function(f"{__name__}:program", __file__)
    assert task.args == (1, (2, 3))
    assert task.kwargs == {"x": {"y": None}}
    assert task.cwd == str(Path.cwd())
    assert set(filter(None, sys.path)) <= set(task.sys_path)


def test_a_static_method_is_named_through_its_class() -> None:
    target = Task.of(Holder.static, world_size=1).target
    assert target == Function(f"{__name__}:Holder.static", __file__)


def test_an_import_path_needs_no_file() -> None:
    assert Task.of("package.module:train", world_size=1).target == Function("package.module:train")


def nested() -> Callable[[], None]:
    def inner() -> None: ...

    return inner


@functools.wraps(program)
def impostor() -> None: ...


REFUSED: list[tuple[Any, str]] = [
    (lambda: None, "is a lambda, which the ranks cannot import; define a function"),
    (nested(), f"nested.<locals>.inner of {__name__} is nested in a function"),
    (print, "<built-in function print> is not a Python function"),
    (functools.partial(program, 1), "is a partial; pass its function"),
    (Holder().method, "is a bound method; pass a module-level function"),
    (Holder, "is not a Python function"),
    (impostor, f"{__name__}:program is not the function that was passed"),
]


@pytest.mark.parametrize(("target", "expected"), REFUSED)
def test_a_function_that_the_ranks_cannot_import_is_refused(target: Any, expected: str) -> None:
    with pytest.raises(TypeError) as caught:
        Task.of(target, world_size=2)
    assert expected in str(caught.value)


@pytest.mark.parametrize("name", ["train", "package.module", ":train", "a b:train", "module:"])
def test_a_name_without_module_or_function_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"write it as 'package\.module:function'"):
        Task.of(name, world_size=2)


def test_an_argument_that_is_not_data_is_named() -> None:
    with pytest.raises(NotDataError, match=r"argument 'x' of .*program.* is a object"):
        Task.of(program, world_size=2, x=object())


def test_a_script_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"there is no script .*missing\.py"):
        Task.of(Script(str(tmp_path / "missing.py")), world_size=2)


def test_a_world_size_of_zero_is_refused() -> None:
    with pytest.raises(ValueError, match="world_size is 0"):
        Task.of(program, world_size=0)


def test_a_file_that_its_module_name_does_not_lead_to_is_loaded_by_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Test files in different folders often have the same name."""
    for folder in (tmp_path / "first", tmp_path / "second"):
        folder.mkdir()
        (folder / "test_of_two_folders.py").write_text("def where():\n    return __file__\n")
        monkeypatch.syspath_prepend(folder)
    file = str(tmp_path / "first" / "test_of_two_folders.py")
    assert load_function(Function("test_of_two_folders:where", file))() == file
    del sys.modules["test_of_two_folders"]


@pytest.fixture
def modules_restored() -> Iterator[None]:
    """Afterwards, the loaded modules are those that were loaded before."""
    before = dict(sys.modules)
    yield
    for name in sys.modules.keys() - before.keys():
        del sys.modules[name]
    sys.modules.update(before)


@pytest.mark.usefixtures("modules_restored")
@pytest.mark.parametrize("init", [True, False])
def test_relative_imports_of_a_file_start_from_the_packages_around_it(
    tmp_path: Path, init: bool
) -> None:
    """pytest imports such a package with `--import-mode=importlib`, and leaves `sys.path` as is."""
    inner = tmp_path / "outer_around" / "inner_around"
    inner.mkdir(parents=True)
    for folder in (inner.parent, inner) if init else ():
        (folder / "__init__.py").write_text("")
    (inner.parent / "width.py").write_text("WIDTH = 3\n")
    (inner / "height.py").write_text("HEIGHT = 5\n")
    program = (
        "from ..width import WIDTH\nfrom .height import HEIGHT\ndef area(): return WIDTH * HEIGHT\n"
    )
    (inner / "program.py").write_text(program)
    target = Function("outer_around.inner_around.program:area", str(inner / "program.py"))

    assert load_function(target)() == 15


@pytest.mark.usefixtures("modules_restored")
def test_a_package_of_another_folder_is_replaced_by_the_one_around_the_file(
    tmp_path: Path,
) -> None:
    package = tmp_path / "tests"  # the name of the package of these tests
    package.mkdir()
    (package / "width.py").write_text("WIDTH = 3\n")
    (package / "program.py").write_text("from .width import WIDTH\ndef width(): return WIDTH\n")
    assert "tests" in sys.modules

    assert load_function(Function("tests.program:width", str(package / "program.py")))() == 3
