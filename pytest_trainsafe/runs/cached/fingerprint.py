"""The cache key of a reference Run: a hash of everything that determines what it records.

The session computes the key of each reference; `cache` stores the recorded Run under it.
Files and environment variables that a program reads are unknown before it runs, so they are not
part of the key unless `trainsafe_cache_inputs` names them; each entry stores them (`inputs`).
"""

from __future__ import annotations

import glob
import hashlib
import importlib.metadata
import os
import platform
import subprocess
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from pytest_trainsafe.core.code_files import PACKAGE, RANK_SIDE, is_project
from pytest_trainsafe.core.links import unlinked
from pytest_trainsafe.launch.launch_environment import LaunchEnvironment
from pytest_trainsafe.runs.cached.distributions import distributions
from pytest_trainsafe.runs.cached.sources import Sources, content_hash, sources, state_of

#: Environment variables that change what torch computes; a name that ends in "*" is a prefix.
#: OMP_NUM_THREADS is not included because launchers always set it to the same number.
NUMERIC_VARIABLES = (
    *("ATEN_CPU_CAPABILITY", "MKL_*", "DNNL_*", "ONEDNN_*", "OPENBLAS_*", "VECLIB_*", "BLIS_*"),
    *("CUBLAS_*", "CUBLASLT_*", "CUDNN_*", "NVIDIA_TF32_OVERRIDE", "NVTE_*", "NCCL_ALGO"),
    *("NCCL_PROTO", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "TORCH_CUDNN_*", "TORCH_BLAS_*"),
    *("TORCH_COMPILE_*", "TORCHDYNAMO_*", "TORCHINDUCTOR_*", "TRITON_*", "PYTHONHASHSEED"),
)


@dataclass(frozen=True, slots=True)
class Key:
    """A cache key: `digest` is the hash of `parts`, which is stored in the cache entry."""

    digest: str
    parts: dict[str, Any]


def make_key(
    run: Mapping[str, object],
    *,
    file: str,
    module: str,
    device: str,
    launch_environment: LaunchEnvironment,
    search: Sequence[str] = (),
    inputs: Sequence[str] = (),
) -> Key | None:
    """The key of a Run on one device; None if something that determines the Run is unknown.

    `run` describes the Run as plain data: program, arguments, Point, dtype, seed and so on.
    `file` defines the program, as the module `module`.  `inputs` contains file patterns and
    environment variables written as "$NAME".  `launch_environment` is the ranks' environment;
    `search`, if not empty, replaces its module search path.
    """
    hardware = _hardware(device)
    if not os.path.isfile(file) or hardware is None:
        return None
    parts = {
        "run": dict(run),
        "cwd": launch_environment.cwd,
        "code": _code(file, module, tuple(search) or launch_environment.sys_path),
        "inputs": _inputs(inputs, launch_environment),
        "environment": _environment(launch_environment.environ),
        "hardware": hardware,
    }
    data = msgspec.json.encode(parts, order="deterministic")
    return Key(hashlib.blake2b(data, digest_size=16).hexdigest(), parts)


#: Results of `_code` by its arguments, with the states of the files they depend on.
_known: dict[object, tuple[dict[str, object], dict[str, Any]]] = {}

#: References of several rungs ask at once; the second one waits for the answer of the first.
_reading = threading.Lock()


#: What `find_sources` has found, until `_code` takes it.
_found: dict[object, Sources] = {}


def find_sources(file: str, module: str, search: tuple[str, ...]) -> None:
    """Finds a program's source files in this thread, for the next call of `make_key`.

    See `sources._parse` for why the main thread should do so.
    """
    _found[file, module, search] = sources(Path(file), module, search)


def _code(file: str, module: str, search: tuple[str, ...]) -> dict[str, Any]:
    """The hashes of a program's source files, and the versions of the packages it imports.

    The result is cached until one of these files, or a folder that was searched, changes.
    """
    with _reading:
        return _read_code(file, module, search)


def _read_code(file: str, module: str, search: tuple[str, ...]) -> dict[str, Any]:
    key = (file, module, search)
    if key in _known:
        state, code = _known[key]
        if _are_now(state):
            return code
    found = _found.pop(key, None)
    if found is None or not _are_now(found.states):
        found = sources(Path(file), module, search)
    files = sorted(map(str, {*found.files, *_own_files()}))
    state = {**found.states, **{str(path): state_of(str(path)) for path in _own_files()}}
    code = {
        "files": {path: content_hash(Path(path)) for path in files},
        "installed": _versions(found),
        "missing": sorted(found.missing),
    }
    _known[key] = (state, code)
    return code


def _are_now(states: Mapping[str, object]) -> bool:
    return all(state_of(path) == before for path, before in states.items())


def _contents(files: Iterable[Path]) -> dict[str, str]:
    return {str(path): content_hash(path) for path in sorted(files)}


@cache
def _own_files() -> tuple[Path, ...]:
    """This package's files that affect a trace; empty if the package is an installed release."""
    if not is_project(PACKAGE):
        return ()
    files = [path for part in RANK_SIDE for path in (PACKAGE / part).rglob("*.py")]
    [models] = unlinked([str(PACKAGE / "reference_models")])
    files += Path(models).rglob("*.yaml")
    return tuple(files)


def _versions(found: Sources) -> dict[str, str]:
    named = distributions()
    versions = {"python": f"{platform.python_implementation()} {platform.python_version()}"}
    for name, file in found.installed.items():
        for distribution in named.get(name, ()):
            versions[distribution.name] = distribution.build
        if name not in named:
            versions[name] = content_hash(file)
    for always in ("torch", "numpy", "pytest-trainsafe"):
        versions[always] = importlib.metadata.version(always)
    import torch

    versions["torch"] = f"{torch.__version__} {torch.version.git_version}"
    return versions


def _inputs(patterns: Sequence[str], around: LaunchEnvironment) -> dict[str, str]:
    """Hashes of the files and values of the variables that `trainsafe_cache_inputs` names."""
    found = {}
    for pattern in patterns:
        if pattern.startswith("$"):
            found[pattern] = around.environ.get(pattern[1:], "")
            continue
        below = os.path.join(glob.escape(around.cwd), pattern)
        paths = glob.glob(below, recursive=True, include_hidden=True)
        found[pattern] = ""
        found |= _contents(Path(path) for path in paths if os.path.isfile(path))
    return found


def _environment(environ: Mapping[str, str]) -> dict[str, str]:
    exact = {name for name in NUMERIC_VARIABLES if not name.endswith("*")}
    prefixes = tuple(name[:-1] for name in NUMERIC_VARIABLES if name.endswith("*"))
    return {
        name: value for name, value in environ.items() if name in exact or name.startswith(prefixes)
    }


@cache
def _hardware(device: str) -> str | None:
    """The kind of device that ranks compute on; None if it cannot be determined.

    Calls nvidia-smi, because a query through CUDA would initialise CUDA in this process.
    """
    import torch

    capability = torch.backends.cpu.get_cpu_capability()
    cpu = f"{platform.machine()} {capability} {_processor()}"
    if device == "cpu":
        return cpu
    command = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    kinds = sorted(set(done.stdout.split("\n")) - {""})
    return f"{cpu}; {'; '.join(kinds)}" if kinds else None


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:
        return platform.processor()
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor()
