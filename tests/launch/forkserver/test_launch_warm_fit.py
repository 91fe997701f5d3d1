"""A group whose ranks must not be forked starts new processes, and a warning says why."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from pytest_trainsafe.errors import TrainsafeWarning
from pytest_trainsafe.launch import Task, WarmLauncher
from pytest_trainsafe.launch.forkserver.fit import misfits


@pytest.mark.parametrize(
    "name", ["PYTHONHASHSEED", "LD_PRELOAD", "MKL_DYNAMIC", "TORCHINDUCTOR_CACHE_DIR"]
)
def test_a_changed_variable_that_is_read_at_process_start_prevents_a_fork(name: str) -> None:
    expected = [
        f"{name} has another value than in the fork server, and is read only when a process starts"
    ]
    assert misfits({}, {name: "1"}, []) == expected
    assert misfits({name: "2"}, {name: "1"}, []) == expected
    assert misfits({name: "2"}, {}, []) == expected
    assert misfits({name: "1"}, {name: "1"}, []) == []


@pytest.mark.parametrize("name", ["ADDED", "OMP_NUM_THREADS", "TORCH_NCCL_BLOCKING_WAIT", "PATH"])
def test_a_changed_variable_that_is_read_later_does_not_prevent_a_fork(name: str) -> None:
    assert misfits({}, {name: "1"}, []) == []


def test_a_module_that_shadows_a_preloaded_one_prevents_a_fork(tmp_path: Path) -> None:
    package = tmp_path / "msgspec"
    package.mkdir()
    (tmp_path / "harmless.py").touch()
    (tmp_path / "pytest.txt").touch()
    assert misfits({}, {}, [str(tmp_path), "/nowhere"]) == []
    (package / "__init__.py").touch()
    expected = [f"{package} has the name of a module that the fork server has already imported"]
    assert misfits({}, {}, [str(tmp_path), *sys.path]) == expected
    assert misfits({}, {"PYTHONPATH": str(tmp_path)}, sys.path) == expected


def test_an_identical_copy_of_a_preloaded_module_does_not_prevent_a_fork(tmp_path: Path) -> None:
    copy = Path(shutil.copy(shutil.__file__, tmp_path))
    assert misfits({}, {}, [str(tmp_path)]) == []
    copy.write_text(copy.read_text() + "\n")
    assert misfits({}, {}, [str(tmp_path)]) == [
        f"{copy} has the name of a module that the fork server has already imported"
    ]


def test_a_group_that_cannot_be_forked_runs_and_warns(warm: WarmLauncher, tmp_path: Path) -> None:
    task = Task.of("sys:getrecursionlimit", world_size=1, env={"PYTHONHASHSEED": "1"})
    with pytest.warns(
        TrainsafeWarning, match="instead of forked: PYTHONHASHSEED has another value than"
    ):
        result = warm.run(task, timeout=60, workdir=tmp_path)
    assert result.values == [sys.getrecursionlimit()]
