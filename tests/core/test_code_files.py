"""A file is known to be the project's, this package's, torch's, a package's, or Python's."""

import contextlib
import subprocess
import sys
import threading

import pytest
import torch

from pytest_trainsafe.core import code_files
from pytest_trainsafe.core.code_files import (
    RANK_SIDE,
    calling_frames,
    calling_lines,
    line_of,
    owner_of,
)
from pytest_trainsafe.fixtures import loop_marks


@pytest.mark.parametrize(
    ("file", "owner"),
    [
        ("<string>", "none"),
        ("<eval_with_key>.7", "none"),
        (code_files.__file__, "ours"),
        (loop_marks.__file__, "fixture"),
        (torch.nn.functional.__file__, "torch"),
        ("/opt/deepspeed/comm/comm.py", "wrapper"),
        ("/v/lib/python3.12/site-packages/deepspeed/comm/comm.py", "wrapper"),
        ("/v/lib/python3.12/site-packages/deepspeed/runtime/engine.py", "installed"),
        ("/usr/lib/python3/dist-packages/yaml/loader.py", "installed"),
        (threading.__file__, "python"),
        (__file__, "project"),
        ("/home/me/train.py", "project"),
    ],
)
def test_the_owner_of_a_file_follows_from_its_path(file, owner):
    assert owner_of(file) == owner


def call(function, file):
    """Calls a function from code that is compiled with `file` as its file name, at line 1."""
    scope = {"function": function}
    exec(compile("result = function()", file, "exec"), scope)  # noqa: S102 - names the file
    return scope["result"]


def test_calling_lines_are_those_of_the_nearest_package_and_of_the_project():
    package, project = "/v/site-packages/layers.py", "/home/me/train.py"
    assert call(calling_lines, project) == (f"{project}:1", "")
    inner = lambda: call(calling_lines, package)  # noqa: E731
    assert call(inner, project)[0] == f"{package}:1"
    assert call(inner, project)[1].startswith(f"{__file__}:")


def test_lines_of_our_loops_for_frameworks_are_named_only_if_there_is_no_other():
    package, loop = "/v/site-packages/layers.py", f"{loop_marks.__file__}"
    inner = lambda: call(calling_lines, package)  # noqa: E731
    site, user = call(inner, loop)
    assert site == f"{package}:1"
    assert user.startswith(f"{__file__}:")  # the test, and not the loop
    # From the loop itself, the nearest other line is named, here the test's.
    assert call(calling_lines, loop)[0].startswith(f"{__file__}:")


def test_frames_of_torch_and_of_python_are_no_callers():
    @contextlib.contextmanager
    def found():
        yield [(line_of(frame), owner) for frame, owner in calling_frames(sys._getframe())]

    with found() as frames:  # contextlib is between the two frames
        pass
    assert [owner for _, owner in frames][:2] == ["project", "project"]
    assert all(line.startswith(__file__) for line, _ in frames[:2])


def test_a_stack_without_a_caller_gives_its_outermost_line(monkeypatch):
    # All callers count as torch's: pytest, which is outermost, too.
    monkeypatch.setattr(code_files, "owner_of", lambda _: "torch")
    outermost = sys._getframe()
    while outermost.f_back is not None:
        outermost = outermost.f_back
    assert calling_lines() == (line_of(outermost), "")


RANK_FOLDERS = tuple(f"{each}/" for each in RANK_SIDE)


def test_every_folder_whose_code_runs_in_ranks_is_known():
    """Else a report names a line of this package as the user's."""
    script = """
import sys
import pytest_trainsafe.launch.forkserver.group
import pytest_trainsafe.record.program

modules = [name for name, module in sys.modules.items() if not hasattr(module, "__path__")]
print(*(name for name in modules if name.startswith("pytest_trainsafe.")))
"""
    done = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True, timeout=300
    )

    found = {"/".join(name.split(".")[1:-1]) for name in done.stdout.split()} - {""}
    assert "compat" in found
    assert [each for each in found if not f"{each}/".startswith(RANK_FOLDERS)] == []
