"""Makes the RunSpecs of a test's reference and candidate, and locates their code."""

from __future__ import annotations

import contextlib
import importlib.util
import os
from collections.abc import Iterator
from typing import Literal, cast

from msgspec import structs

from pytest_trainsafe.core.mesh.sweep_axes import parallel_axes
from pytest_trainsafe.core.rungs.table import path_of, rung_named
from pytest_trainsafe.frameworks import BUILT_IN
from pytest_trainsafe.launch.launch_environment import LaunchEnvironment
from pytest_trainsafe.sweep.case import Case
from pytest_trainsafe.trace.run_spec import Recording, RunSpec, WantedDevice, arguments_of

Role = Literal["reference", "candidate"]

#: The kinds whose recording takes decisions itself, such as the larger of a norm and its limit.  A
#: Run that another follows records these alone.
_DECIDING = ("decision", "loss", "grad_norm")


def spec_of(case: Case, role: Role, dtype: str) -> RunSpec:
    """The RunSpec of a test's reference or candidate in `dtype`, with its recording settings."""
    program, settings, rung = case.program, case.settings, rung_named(dtype)
    if role == "candidate":
        point, arguments = case.point.without("dtype"), case.candidate_arguments
    else:
        point, arguments = case.reference_point, case.arguments
    # A candidate whose Point names no parallel axis equals the reference, so both share one Run.
    alike = not program.traits.candidate and point == point.without(*parallel_axes(point.mesh))
    trusted = role == "reference" or alike
    script = program.script
    follows = spec_of(case, role, rung.follows) if rung.follows else None
    return RunSpec(
        program=program.path,
        file=program.file,
        script=script.path if script is not None else "",
        script_args=tuple(script.args) if script is not None else (),
        arguments=arguments_of(arguments),
        axes=point.values,
        mesh=point.mesh.declared,
        dtype=dtype,
        rung=path_of(dtype),
        seed=settings.seed,
        device=cast(WantedDevice, rung.device or settings.device),
        timeout=settings.timeout,
        inputs=program.traits.inputs,
        trusted=trusted,
        # In exact numbers no cast rounds; the watch would see each operator that computes them.
        watch_casts=trusted and not rung.exact,
        record=recorded_at(dtype, settings.record),
        kinds=settings.record_kinds,
        replay=_followed(follows) if follows else None,
        modules=settings.record_modules,
        adapters=(*BUILT_IN, *settings.adapters),
        rng=settings.rng,
    )


def _followed(spec: RunSpec) -> RunSpec:
    """A Run of which only the decisions are needed."""
    kinds = tuple(kind for kind in _DECIDING if spec.records(kind)) or spec.kinds
    return structs.replace(spec, record="full", watch_casts=False, kinds=kinds)


def recorded_at(dtype: str, wanted: Recording) -> Recording:
    """How a Run at the rung `dtype` is recorded; "full" if sketches show nothing of its numbers."""
    return "full" if rung_named(dtype).exact else wanted


def own_files(spec: RunSpec) -> Iterator[str]:
    """Yields the files of a project's framework adapters, instruments and rung.

    They affect what a trace contains.  Those of the package belong to its version.
    """
    own = filter(None, (*spec.adapters[len(BUILT_IN) :], *spec.instruments, spec.rung))
    for path in own:
        found = None
        with contextlib.suppress(ImportError):  # the ranks report import errors
            found = importlib.util.find_spec(path.partition(":")[0])
        if found is not None and found.origin:
            yield found.origin


def code_of(spec: RunSpec, around: LaunchEnvironment) -> tuple[str, str, tuple[str, ...]]:
    """The file and module name of a Run's program, and the module search path of its ranks."""
    if spec.script:
        script = os.path.join(around.cwd, spec.script)
        return script, "__main__", (os.path.dirname(script), *around.sys_path)
    return spec.file, spec.program.partition(":")[0], around.sys_path


def as_script(spec: RunSpec) -> bool:
    """Whether the Run needs the launcher of scripts, which starts new processes."""
    # Variables such as PYTHONHASHSEED are read when a process starts, so a fork ignores changes.
    return bool(spec.script or spec.environ)


def not_kept(spec: RunSpec, why: str) -> str:
    """A note that the reference is run again by each pytest run."""
    return (
        f"the reference of {spec.script or spec.program} is not kept for later runs, because {why}"
    )
