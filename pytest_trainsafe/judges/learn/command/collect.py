"""Runs a plain script with arguments and keeps what its ranks observed, for learning and checking.

A script needs no marker and no `ctx`: each step of its first optimizer ends a step.  It runs in
this process, which may be one of several ranks that torchrun started: then every rank writes its
file, and rank 0 waits for the others'.
"""

from __future__ import annotations

import hashlib
import json
import os
import runpy
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from pkgutil import resolve_name

import msgspec
import torch

from pytest_trainsafe.core.untrusted import MALFORMED, read_file
from pytest_trainsafe.errors import TrainsafeError
from pytest_trainsafe.judges.learn.events.events import Listener, Plain
from pytest_trainsafe.judges.learn.events.file import read_table
from pytest_trainsafe.judges.learn.fields import MAX_TEXT
from pytest_trainsafe.judges.learn.run import ObservedRun
from pytest_trainsafe.trace.run_spec import Observe

#: What observes in the ranks is loaded by its path, since judging imports none of it.
_OBSERVING = "pytest_trainsafe.judges.learn.instrument.plain:observing"
#: How long rank 0 waits for the files of the other ranks after its own end, in seconds.
PATIENCE = 60.0
#: What a complete run has beside the files of its ranks.
_ABOUT = "run.json"
_MAX_BYTES = 2**20


class CollectError(TrainsafeError, RuntimeError):
    """Raised for a script that cannot be run, or that failed, so that nothing is known of it."""


class _About(msgspec.Struct):
    program: str
    setting: str
    world: int
    versions: dict[str, str]


@dataclass(frozen=True, slots=True)
class Script:
    """A script with its arguments, below the folder `root`; `axis` is that of its ranks."""

    path: Path
    arguments: tuple[str, ...]
    root: Path
    axis: str = "dp"

    @property
    def program(self) -> str:
        """The name of the program: the path of the script below the root."""
        path = self.path.resolve()
        inside = path.is_relative_to(self.root.resolve())
        return (path.relative_to(self.root.resolve()) if inside else Path(path.name)).as_posix()

    @property
    def setting(self) -> str:
        """The configuration: the arguments, and the number of ranks if there are several."""
        ranks = [f"{self.axis}={world()}"] if world() > 1 else []
        text = " ".join([*ranks, *self.arguments])
        if len(text) <= MAX_TEXT:
            return text
        return f"arguments {hashlib.blake2b(text.encode(), digest_size=8).hexdigest()}"

    def folder(self, below: Path) -> Path:
        """The folder of this configuration's run."""
        text = json.dumps([self.program, self.setting])
        return below / hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def rank() -> int:
    """The rank of this process, as torchrun says; 0 without it."""
    return _number("RANK", 0)


def world() -> int:
    """The number of ranks, as torchrun says; 1 without it."""
    return _number("WORLD_SIZE", 1)


def collect(
    script: Script,
    folder: Path,
    observe: Observe,
    patience: float = PATIENCE,
    listeners: Sequence[Listener] = (),
) -> None:
    """Run a script and write what it did to `folder`, which is complete once rank 0 returns.

    `listeners` receive this rank's events while the script runs.
    Raises CollectError if the script does not exist or fails, also on another rank.
    """
    if not script.path.is_file():
        raise CollectError(f"{script.path}: there is no such script")
    folder.mkdir(parents=True, exist_ok=True)
    final, partial = folder / f"rank{rank()}.bin", folder / f"rank{rank()}.part"
    for old in (final, *((folder / _ABOUT,) if not rank() else ())):
        old.unlink(missing_ok=True)
    fixed: dict[str, Plain] = {"rank": rank(), "world_size": world()}
    if world() > 1:
        fixed[f"{script.axis}_rank"] = rank()
    with resolve_name(_OBSERVING)(partial, rank(), fixed, observe, listeners):
        _run(script)
    partial.replace(final)
    if not rank():
        _wait(script, folder, patience)
        versions = {"torch": torch.__version__.partition("+")[0]}
        about = _About(script.program, script.setting, world(), versions)
        (folder / _ABOUT).write_bytes(msgspec.json.encode(about))


def kept_runs(below: Path) -> list[ObservedRun]:
    """The complete runs below a folder, in a stable order."""
    found = []
    for path in sorted(below.glob(f"*/{_ABOUT}")):
        try:
            about = msgspec.json.decode(read_file(path, max_bytes=_MAX_BYTES), type=_About)
        except (OSError, *MALFORMED, msgspec.ValidationError):
            raise CollectError(f"{path} is damaged: delete the folder, and run again") from None
        tables = [
            read_table(path.parent / f"rank{each}.bin", each, below=below)
            for each in range(about.world)
        ]
        found.append(ObservedRun(about.program, tables, about.versions, about.setting))
    return found


def _run(script: Script) -> None:
    """Runs the script as Python does; what it leaves in `sys` is taken back."""
    arguments, path = sys.argv, list(sys.path)
    sys.argv = [str(script.path), *script.arguments]
    sys.path[0:0] = [str(script.path.resolve().parent)]
    try:
        runpy.run_path(str(script.path), run_name="__main__")
    except SystemExit as ended:
        if ended.code not in (None, 0):
            raise CollectError(f"{script.path} ended with the status {ended.code}") from ended
    finally:
        sys.argv, sys.path[:] = arguments, path


def _wait(script: Script, folder: Path, patience: float) -> None:
    wanted = [folder / f"rank{each}.bin" for each in range(world())]
    until = time.monotonic() + patience
    while missing := [each.stem for each in wanted if not each.exists()]:
        if time.monotonic() > until:
            raise CollectError(
                f"{script.path}: {', '.join(missing)} ended without a complete run, within "
                f"{patience:.0f} s of rank 0"
            )
        time.sleep(0.05)


def _number(name: str, otherwise: int, environ: Mapping[str, str] = os.environ) -> int:
    text = environ.get(name, "")
    return int(text) if text.isdecimal() and len(text) < 9 else otherwise


def script_of(words: Sequence[str], root: Path, axis: str) -> Script:
    """The Script of a command line: the path of a script, then its arguments."""
    return Script(Path(words[0]), tuple(words[1:]), root, axis)
