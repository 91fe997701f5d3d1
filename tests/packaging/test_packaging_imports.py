"""The import contracts of pyproject.toml report imports that they forbid."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.fixture
def installed(root: Path, tmp_path: Path) -> Path:
    """A copy of the package, with folders in place of its links, which tests may change."""
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(root / "pytest_trainsafe", tmp_path / "pytest_trainsafe", ignore=ignored)
    return tmp_path


def lint(folder: Path, root: Path) -> subprocess.CompletedProcess[str]:
    program = "import sys; sys.path.insert(0, '.'); from importlinter.cli import lint_imports; "
    return subprocess.run(
        [
            *(sys.executable, "-c"),
            f"{program}sys.exit(lint_imports({str(root / 'pyproject.toml')!r}, no_cache=True))",
        ],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


#: Files, and modules that they must not import.
PLANTED = {
    "core/point.py": "sweep.marker",  # a higher room
    "record/clock.py": "frameworks.deepspeed.engine",
    "record/recorder.py": "judges.learn.instrument.observing",  # a wing
    "trace/reader.py": "judges.replay.rng.judge",
    "report/rows.py": "judges.contract",
    "judges/compare/compare.py": "launch.torchrun.launcher",  # what starts ranks
    "judges/joint.py": "judges.learn.judge",  # a judge by its class
    "judges/learn/judge.py": "judges.compare.judge",  # another wing
    "judges/compare/rung.py": "judges.replay.rng.judge",
    "judges/exact/judge.py": "judges.exact.instrument.rungs",
    "judges/exact/events/decisions.py": "judges.learn.run",
    "judges/learn/check/offline.py": "judges.learn.instrument.observer",  # what runs in ranks
    "record/tensors.py": "record.hooks.activations",  # a higher floor of the same room
    "record/lines/sites.py": "record.layouts.dtensor",  # the same floor
    "launch/collectives/ledger.py": "launch.supervise.watching",
    "runs/execution/scheduler.py": "runs.session",
    "judges/compare/tensors/tensor.py": "judges.compare.rung",
    "judges/compare/localize/inputs.py": "judges.compare.instrument.rewrite",
    "judges/learn/inference/kept.py": "judges.learn.packs.read",
    "judges/metamorphic/change.py": "judges.metamorphic.judge",
    "judges/refine/sizes/sites.py": "judges.refine.search.cuts",
    "judges/refine/evaluate/run.py": "judges.refine.sizes.shrink",
    "judges/refine/certificate/checker.py": "judges.refine.search.index",
    "judges/replay/rng/draws.py": "judges.replay.resume.data",
    "judges/replay/checkpoints/events/file.py": "judges.replay.checkpoints.instrument.tree",
    "judges/replay/determinism/divergence.py": "judges.replay.determinism.cause",
    "judges/replay/resume/state.py": "judges.replay.resume.loaded",
    "judges/replay/rng/parallel.py": "judges.replay.rng.ledger_rules",
}

#: A new file of a room whose contract is exhaustive.
UNPLACED = "record/unplaced.py"


def test_imports_that_the_contracts_forbid_are_found(installed: Path, root: Path) -> None:
    for file, planted in PLANTED.items():
        changed = installed / "pytest_trainsafe" / file
        changed.write_text(f"{changed.read_text()}\nimport pytest_trainsafe.{planted}\n")

    result = lint(installed, root)

    assert result.returncode == 1, result.stdout + result.stderr
    text = " ".join(result.stdout.split())
    missing = {
        f"{importer} -> pytest_trainsafe.{planted} "
        for file, planted in PLANTED.items()
        if (importer := f"pytest_trainsafe.{file[:-3].replace('/', '.')}")
        and f"{importer} -> pytest_trainsafe.{planted} " not in text
    }
    assert not missing, text


def test_a_new_file_without_a_floor_is_found(installed: Path, root: Path) -> None:
    (installed / "pytest_trainsafe" / UNPLACED).write_text('"""No contract names this file."""\n')

    result = lint(installed, root)

    assert result.returncode == 1, result.stdout + result.stderr
    assert "pytest_trainsafe.record.unplaced" in result.stdout
