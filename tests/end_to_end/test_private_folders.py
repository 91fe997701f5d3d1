"""Folders with a user's tensors cannot be entered by other users, although the umask allows it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.end_to_end import inner_pytest

SOURCE = """
import pytest
from pytest_trainsafe import assert_trainsafe
from pytest_trainsafe.reference_models import gpt

@pytest.mark.trainsafe(gpt.train, dp=2, dtype=["float64"], args={"layers": 1, "steps": 1})
def test_gpt(candidate_trace, reference_trace):
    assert_trainsafe(candidate_trace, reference_trace)

def work():
    import torch
    return torch.ones(4)

def test_group(torchrun_group):
    torchrun_group.run(work, world_size=1)
"""

#: Whose names end so: payloads of traces, and what ranks return.
TENSORS = (".safetensors", "result.msgpack")


@pytest.mark.parametrize(("umask", "keep"), [(0o022, True), (0o000, False)])
def test_every_file_with_tensors_is_below_a_private_folder(
    tmp_path: Path, umask: int, keep: bool
) -> None:
    (tmp_path / "test_inner.py").write_text(SOURCE)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    made = tmp_path / ("kept" if keep else "base")
    roots = {made, tmp_path / "cache"}
    arguments = [
        *("-p", "no:hypothesispytest", "--trainsafe-localize=off"),
        *(f"--basetemp={tmp_path / 'base'}", "-o", f"cache_dir={tmp_path / 'cache'}"),
        *((f"--trainsafe-keep-traces={made}",) if keep else ()),
    ]

    done = inner_pytest.forked(arguments, tmp_path, umask)

    assert done.returncode == 0, done.stdout
    found = {root: [f for f in root.rglob("*") if f.name.endswith(TENSORS)] for root in roots}
    assert all(found.values()), found
    assert [f for root in roots for f in found[root] if not is_private(f, root)] == []
    if keep:  # a trace that is moved elsewhere stays private
        traces = [path.parent for path in made.rglob("manifest.json")]
        assert traces
        assert all(trace.stat().st_mode & 0o077 == 0 for trace in traces)


def is_private(file: Path, root: Path) -> bool:
    """Whether a folder of ours, below `root`, which pytest or the user made, has mode 700."""
    folders = [folder for folder in file.parents if folder.is_relative_to(root) and folder != root]
    return any(folder.stat().st_mode & 0o777 == 0o700 for folder in folders)
