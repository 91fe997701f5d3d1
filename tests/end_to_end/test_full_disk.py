"""A full disk fails the test with a message that names the disk."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.end_to_end import inner_pytest

SOURCE = """
import pytest
from tests.support.end_to_end.mistaken_program import train
from pytest_trainsafe import assert_trainsafe

@pytest.mark.trainsafe(train, dp=2)
def test_training(candidate_trace, reference_trace):
    assert_trainsafe(candidate_trace, reference_trace)
"""


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=100k", "tmpfs", str(disk)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting a small disk needs root")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


@pytest.mark.usefixtures("shared_fork_server")
def test_a_full_disk_fails_the_test_and_is_named_in_the_message(
    tmp_path: Path, small_disk: Path
) -> None:
    done = inner_pytest.run(tmp_path, SOURCE, f"--trainsafe-keep-traces={small_disk}")

    assert done.returncode == 1, done.stdout + done.stderr
    assert "no space left on device" in done.stdout.lower()
    assert str(small_disk) in done.stdout
