"""The import contracts of pyproject.toml report imports that they forbid."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest


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


@pytest.fixture(scope="module")
def reported(root: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """What the contracts report, on one line, of a copy with all that is planted.

    One run of import-linter for all, since most of its time goes into reading the package.
    """
    copy = tmp_path_factory.mktemp("planted")
    ignored = shutil.ignore_patterns("__pycache__")
    package = copy / "pytest_trainsafe"
    shutil.copytree(root / "pytest_trainsafe", package, ignore=ignored)
    for file, planted in PLANTED.items():
        changed = package / file
        changed.write_text(f"{changed.read_text()}\nimport pytest_trainsafe.{planted}\n")
    (package / UNPLACED).write_text('"""No contract names this file."""\n')
    result = lint(copy, root)
    assert result.returncode == 1, result.stdout + result.stderr
    return " ".join(result.stdout.split())


def test_imports_that_the_contracts_forbid_are_found(reported: str) -> None:
    missing = {
        f"{importer} -> pytest_trainsafe.{planted} "
        for file, planted in PLANTED.items()
        if (importer := f"pytest_trainsafe.{file[:-3].replace('/', '.')}")
        and f"{importer} -> pytest_trainsafe.{planted} " not in reported
    }
    assert not missing, reported


def test_a_new_file_without_a_floor_is_found(reported: str) -> None:
    assert "pytest_trainsafe.record.unplaced" in reported
