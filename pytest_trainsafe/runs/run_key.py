"""What determines a Run: the key under which it is shared, and what follows from that."""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import os
import platform
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from pytest_trainsafe.config.settings import Recording
from pytest_trainsafe.core.point import Point
from pytest_trainsafe.core.tensor_id import TensorId
from pytest_trainsafe.frameworks import BUILT_IN
from pytest_trainsafe.launch.surroundings import Surroundings
from pytest_trainsafe.record.spec import RunSpec
from pytest_trainsafe.trace.schema import Manifest


@dataclass(frozen=True, slots=True)
class RunKey:
    """What determines a Run.  Equal keys are one Run."""

    program: str
    file: str
    script: str
    script_args: tuple[str, ...]
    arguments: str
    point: Point
    dtype: str
    perturbation: float
    trusted: bool
    watch_casts: bool
    seed: int
    device: str
    timeout: float
    record: Recording
    keep: tuple[TensorId, ...]
    replay: RunKey | None
    record_kinds: tuple[str, ...]
    record_modules: tuple[str, ...]
    adapters: tuple[str, ...]
    inputs: tuple[str, ...] = ()
    rewrite: str = ""
    sample: int = 0
    rng: bool = True

    @property
    def told(self) -> str:
        """Which Run of a test this is, in words."""
        if self.trusted:
            where = "on a single device" if self.point.world_size == 1 else f"at {self.point}"
            who = f"the reference, {where}"
        else:
            who = f"the candidate at {self.point}"
        how = ""
        if self.rewrite:
            how = ", with rewritten values, to find the code at fault"
        elif self.perturbation:
            how = ", under noise of the size of rounding"
        return f"{who}, in {self.dtype}{how}"


def adapter_files(key: RunKey) -> Iterator[str]:
    """The files of the adapters that are a project's own: what they say is in the trace."""
    for path in key.adapters[len(BUILT_IN) :]:
        spec = None
        with contextlib.suppress(ImportError):  # ranks say what cannot be imported
            spec = importlib.util.find_spec(path.partition(":")[0])
        if spec is not None and spec.origin:
            yield spec.origin


def code_of(key: RunKey, around: Surroundings) -> tuple[str, str, tuple[str, ...]]:
    """The file of a Run's program, the module it is, and its ranks' module search path."""
    if key.script:
        script = os.path.join(around.cwd, key.script)
        return script, "__main__", (os.path.dirname(script), *around.sys_path)
    return key.file, key.program.partition(":")[0], around.sys_path


def manifest_of(spec: RunSpec, key: RunKey) -> Manifest:
    """What the trace of a Run says of it."""
    return Manifest(
        program=spec.program,
        point=spec.point,
        arguments=key.arguments,
        world_size=key.point.world_size,
        dtype=spec.dtype,
        device=spec.device,
        seed=spec.seed,
        perturbation=spec.perturbation,
        versions={
            "python": platform.python_version(),
            "torch": str(torch.__version__),
            "pytest-trainsafe": importlib.metadata.version("pytest-trainsafe"),
        },
    )
