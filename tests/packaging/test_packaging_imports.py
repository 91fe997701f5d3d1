"""The import contract of pyproject.toml reports imports from a higher layer."""

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


@pytest.mark.parametrize(
    ("file", "planted", "found"),
    [
        (
            "core/point.py",
            "import pytest_trainsafe.sweep.marker",
            "pytest_trainsafe.core.point -> pytest_trainsafe.sweep.marker",
        ),
        (
            "record/clock.py",
            "import pytest_trainsafe.frameworks.deepspeed.engine",
            "pytest_trainsafe.record.clock -> pytest_trainsafe.frameworks.deepspeed.engine",
        ),
        (
            "judges/compare/compare.py",
            "import pytest_trainsafe.launch.torchrun.launcher",
            "pytest_trainsafe.judges.compare.compare -> pytest_trainsafe.launch.torchrun.launcher",
        ),
    ],
)
def test_an_import_from_a_higher_layer_is_found(
    installed: Path, root: Path, file: str, planted: str, found: str
) -> None:
    changed = installed / "pytest_trainsafe" / file
    changed.write_text(changed.read_text() + f"\n{planted}\n")

    result = lint(installed, root)

    assert result.returncode == 1, result.stdout + result.stderr
    assert found in " ".join(result.stdout.split())
