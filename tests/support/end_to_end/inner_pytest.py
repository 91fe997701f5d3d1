"""Runs pytest on a written test file, or a script, in a separate process, as a user would.

Most of these processes are forked from one that has imported torch and pytest, which takes as long
as what many of them test.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import re
import runpy
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

#: Where the processes are forked.  The package is not imported there: pytest's hook for assertions
#: must see its import.
_FORKED = multiprocessing.get_context("forkserver")
_FORKED.set_forkserver_preload(["torch", "safetensors.torch", "yaml", "pytest"])


def command(folder: Path, source: str, *options: str) -> list[str]:
    """Write `test_inner.py` into `folder`; the command line that runs it there."""
    return [sys.executable, "-m", "pytest", *_written(folder, source, *options)]


def _written(folder: Path, source: str, *options: str) -> list[str]:
    """Write `test_inner.py` into `folder`; the arguments of pytest."""
    (folder / "test_inner.py").write_text(source)
    (folder / "pytest.ini").write_text("[pytest]\n")
    # The tests read the first report; localizing the faulty code would only take time.
    quick = ("--trainsafe-dtype=float64", "--trainsafe-localize=off")
    plugins = ("-p", "no:hypothesispytest", "-p", "no:cacheprovider")
    return [*plugins, f"--basetemp={folder}/base", *quick, *options]


def run(folder: Path, source: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Run the written test; its output is captured."""
    return forked(_written(folder, source, *options), folder)


def forked(
    arguments: list[str], folder: Path, umask: int | None = None
) -> subprocess.CompletedProcess[str]:
    """Run pytest with these arguments in a forked process in a folder; its output is captured."""
    return _forked(_pytest, arguments, folder, umask)


def script(source: str, arguments: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run Python code in a forked process, in which torch is imported; its output is captured."""
    file = folder / "inner_script.py"
    file.write_text(source)
    return _forked(_script, [str(file), *arguments], folder, None)


def _forked(
    target: Callable[[list[str]], object], arguments: list[str], folder: Path, umask: int | None
) -> subprocess.CompletedProcess[str]:
    out, err = folder.with_name(f"{folder.name}.out"), folder.with_name(f"{folder.name}.err")
    process = _FORKED.Process(
        target=_run, args=(target, arguments, folder, dict(os.environ), out, err, umask)
    )
    process.start()
    process.join(600)
    if process.exitcode is None:
        process.kill()
        process.join()
        raise subprocess.TimeoutExpired(arguments, 600, out.read_text(), err.read_text())
    code = process.exitcode
    process.close()
    return subprocess.CompletedProcess(arguments, code, out.read_text(), err.read_text())


def run_in(project: pytest.Pytester, *options: str) -> pytest.RunResult:
    """What `project.runpytest_subprocess` gives, from a forked process."""
    begun = time.perf_counter()
    done = forked([f"--basetemp={project.path}/base", *options], project.path)
    lines = done.stdout.splitlines(), done.stderr.splitlines()
    print(done.stdout)
    print(done.stderr, file=sys.stderr)
    return pytest.RunResult(done.returncode, *lines, time.perf_counter() - begun)


def _run(
    target: Callable[[list[str]], object],
    arguments: list[str],
    folder: Path,
    environ: Mapping[str, str],
    out: Path,
    err: Path,
    umask: int | None,
) -> None:
    """What a forked process does: it calls the target in a folder, and ends with its result."""
    for fd, file in ((1, out), (2, err)):
        with file.open("w") as opened:
            os.dup2(opened.fileno(), fd)
    if umask is not None:
        os.umask(umask)
    os.environ.clear()
    os.environ.update(environ)
    os.chdir(folder)
    searched = filter(None, environ.get("PYTHONPATH", "").split(os.pathsep))
    sys.path[:0] = [str(folder), *(each for each in searched if each not in sys.path)]
    code = target(arguments)
    # multiprocessing ends its processes without them.
    atexit._run_exitfuncs()
    sys.exit(code)  # type: ignore[arg-type]


def _pytest(arguments: list[str]) -> object:
    """`python -m pytest` with these arguments; returns the exit code."""
    sys.argv = [pytest.__file__, *arguments]
    return pytest.main(arguments)


def _script(arguments: list[str]) -> object:
    """`python` with these arguments, the first of which is a file; returns the exit code."""
    sys.argv = arguments
    runpy.run_path(arguments[0], run_name=Path(arguments[0]).stem)
    return 0


def captured(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a command in a folder; its output is captured."""
    return subprocess.run(
        command,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


def flat(text: str) -> str:
    """Text on one line, without the margin `E` of pytest's failures."""
    return re.sub(r"\s+(E\s+)?", " ", text)
