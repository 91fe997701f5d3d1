"""Puts an old release of DeepSpeed into a folder of its own.  Called by the benchmark and tests."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def reachable() -> str:
    """Why releases cannot be downloaded from the package index; "" if they can."""
    command = [sys.executable, "-m", "pip", "index", "versions", "deepspeed"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    return done.stderr.strip().splitlines()[-1] if done.returncode else ""


def install(release: str, folder: Path) -> Path:
    """The subfolder of `folder` that has this release; pip installs it there if it is missing.

    Nothing is compiled.  The release's dependencies are not installed: it uses those of the
    environment, as the installed DeepSpeed does.  Raises RuntimeError with pip's output if pip
    fails.
    """
    place = folder / release
    if (place / "deepspeed").is_dir():
        return place
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
    command += ["--no-build-isolation", "--target", str(place), f"deepspeed=={release}"]
    environ = {**os.environ, "DS_BUILD_OPS": "0"}
    # Releases before 0.14.1 cannot be built if this variable selects CPUs.
    environ.pop("DS_ACCELERATOR", None)
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"DeepSpeed {release} could not be installed:\n{done.stderr[-2000:]}")
    return place
