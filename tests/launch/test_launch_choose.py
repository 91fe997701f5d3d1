"""A launcher is made from its import path when it is first needed, once, and closed at the end."""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping
from pathlib import Path

import pytest

from pytest_trainsafe.launch import GroupResult, LaunchSetup, Task, TorchrunLauncher, WarmLauncher
from pytest_trainsafe.launch.choose import LauncherError, Launchers
from pytest_trainsafe.launch.forkserver.preforked import PreforkedGroup
from pytest_trainsafe.launch.protocol import StartsEarly


class Toy:
    """Runs nothing, and records the calls of its methods."""

    name = "toy"

    def __init__(self, setup: LaunchSetup) -> None:
        self.setup = setup
        self.calls: list[str] = []

    def run(
        self,
        task: Task,
        *,
        timeout: float,
        workdir: Path,
        stop: threading.Event | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> GroupResult:
        self.calls.append("run")
        return GroupResult(task=str(task), folder=workdir, ranks=(), seconds=0.0, timeout=timeout)


class Eager(Toy):
    """Can also start groups early."""

    def begin(self, task: Task, workdir: Path, environ: Mapping[str, str] | None = None) -> Eager:
        self.calls.append("begin")
        return self

    def end(self) -> None:
        self.calls.append("end")

    def close(self) -> None:
        self.calls.append("close")


def no_launcher(setup: LaunchSetup) -> object:
    return object()


def launchers(wanted: str, path: str, folder: Path) -> Launchers:
    return Launchers(wanted, folder, 0, lambda text: None, "host", [("toy", path)])


def chosen(path: str, folder: Path) -> object:
    return launchers("toy", path, folder).of(script=False, stop=threading.Event())


def test_a_launcher_is_made_once_for_functions_and_scripts(tmp_path: Path) -> None:
    made = launchers("toy", f"{__name__}:Eager", tmp_path)

    first = made.of(script=False, stop=threading.Event())
    second = made.of(script=True, stop=threading.Event())
    made.close()

    assert first is second
    assert isinstance(first, Eager)
    assert (first.setup.network, first.setup.folder) == ("host", tmp_path)
    assert first.calls == ["close"]


def test_scripts_go_to_torchrun_by_default(tmp_path: Path) -> None:
    made = launchers("auto", f"{__name__}:Toy", tmp_path)

    assert isinstance(made.of(script=True, stop=threading.Event()), TorchrunLauncher)


@pytest.mark.parametrize(
    ("path", "words"),
    [
        (
            "missing_module:Toy",
            "the launcher 'toy' cannot be made from 'missing_module:Toy' (No mo",
        ),
        ("collections:Missing", "cannot be made from 'collections:Missing' (module 'collections'"),
        ("threading:Event", "cannot be made from 'threading:Event' ("),
        (f"{__name__}:no_launcher", "made an object of type object as the launcher"),
    ],
)
def test_a_launcher_that_cannot_be_made_is_named(path: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(LauncherError, match=re.escape(words)):
        chosen(path, tmp_path)


def test_only_launchers_of_the_protocol_starts_early_begin_groups_early(tmp_path: Path) -> None:
    task = Task.of("builtins:print", world_size=1)
    for path, calls in (("Eager", ["begin", "end", "run"]), ("Toy", ["run"])):
        launcher = chosen(f"{__name__}:{path}", tmp_path)
        assert isinstance(launcher, Toy)
        with PreforkedGroup(launcher, task, tmp_path) as preforked:
            preforked.begin()
        PreforkedGroup(launcher, task, tmp_path).run({}, 1.0, threading.Event())
        assert launcher.calls == calls
    assert issubclass(WarmLauncher, StartsEarly)
    assert not issubclass(TorchrunLauncher, StartsEarly)
