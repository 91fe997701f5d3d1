"""Observation of a whole library: its classes, the program's subclasses, later imports."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from pytest_trainsafe import observe
from tests.support.learn.observing import Kept

CORE = """
class Saver:
    def __init__(self, limit):
        self.limit = limit

    def __call__(self, names):
        return self.save(names)

    def save(self, names):
        return len(self.chosen(names))

    def chosen(self, names):
        return list(names)
"""


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The module `seen_library.core`, and `seen_library.late`, which is not imported."""
    folder = tmp_path / "seen_library"
    folder.mkdir()
    for name, text in (("__init__", ""), ("core", CORE), ("late", "def arrive(): return 3")):
        (folder / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    import seen_library.core  # type: ignore[import-not-found]

    yield seen_library.core
    for name in [each for each in sys.modules if each.startswith("seen_library")]:
        del sys.modules[name]


def test_a_method_overridden_in_a_subclass_is_recorded_under_the_librarys_name(
    library: Any,
) -> None:
    class Own(library.Saver):
        def chosen(self, names: list[str]) -> list[str]:
            return list(super().chosen(names))[:1]

    with observe(["seen_library"]) as observation:
        Own(3)(["a", "b"])
    kept = Kept.of(observation.table)
    saver = "seen_library.core.Saver"
    names = ("__init__", "__call__", "save", "chosen")
    assert kept.apis() == [f"{saver}.{name}" for name in names]
    [chosen] = kept.called(f"{saver}.chosen")
    assert chosen.values["arg.names.length"].plain == 2
    assert chosen.values["result.length"].plain == 1
    assert not hasattr(Own.chosen, "__wrapped__")


def test_a_module_imported_during_the_observation_is_observed(library: Any) -> None:
    with observe(["seen_library"]) as observation:
        import seen_library.late  # type: ignore[import-not-found]

        library.Saver(1)
        assert seen_library.late.arrive() == 3
    assert Kept.of(observation.table).apis() == [
        "seen_library.core.Saver.__init__",
        "seen_library.late.arrive",
    ]


def test_all_classes_of_a_library_with_an_optimizer_class_are_observed(library: Any) -> None:
    library.Shrinking = type("Shrinking", (torch.optim.SGD,), {"__module__": library.__name__})
    with observe(["seen_library"]) as observation:
        library.Saver(1).save(["a"])
        library.Shrinking([torch.nn.Parameter(torch.ones(1))], lr=0.1).step()
    optimizer = "seen_library.core.Shrinking"
    saver = "seen_library.core.Saver"
    assert Kept.of(observation.table).apis() == [
        *(f"{saver}.{name}" for name in ("__init__", "save", "chosen")),
        *(f"{optimizer}.{name}" for name in ("__init__", "add_param_group", "step")),
    ]


def test_a_subclass_in_a_similarly_named_module_is_recorded_under_the_librarys_name(
    library: Any,
) -> None:
    class Own(library.Saver):
        pass

    Own.__module__ = "seen_library_user.program"
    with observe(["seen_library.core"]) as observation:
        Own(2).save(["a"])
    assert "seen_library.core.Saver.save" in Kept.of(observation.table).apis()
    Own.__module__ = "seen_library.programs"
    with observe(["seen_library.core"]) as observation:
        Own(2).save(["a"])
    assert "seen_library.core.Saver.save" in Kept.of(observation.table).apis()
