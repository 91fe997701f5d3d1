"""Makes the content of a certificate from the Runs that were compared."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

import xxhash
from msgspec import structs

from pytest_trainsafe.align.logical import logical_tensor
from pytest_trainsafe.align.words import describe
from pytest_trainsafe.arithmetic import table
from pytest_trainsafe.arithmetic.variants import find
from pytest_trainsafe.judges.exact.certificate import Certificate, Side
from pytest_trainsafe.judges.exact.events import OperatorsMet
from pytest_trainsafe.judges.exact.shapes import outside
from pytest_trainsafe.launch.launch_environment import LaunchEnvironment
from pytest_trainsafe.runs.cached.sources import content_hash, sources
from pytest_trainsafe.runs.specs import code_of
from pytest_trainsafe.trace.reader import Trace
from pytest_trainsafe.trace.run_spec import RunSpec

_ASSUMES = (
    "both sides train on these shapes, data, routings and decisions",
    "casts to float64, float32, bfloat16 and float16 are identities",
    "functions without known identities, such as erf, are equal only on equal arguments",
    "initial values that are multiples of 1/1024 below 1024, such as zeros and ones, are constants",
    "equal initial values are one variable",
    "a Python float that is close to a simple number, within 2**-50 of it, means this number",
    "an asynchronous collective whose Future is taken is complete when the Future is used",
)


def certified(
    candidate: Trace,
    reference: Trace,
    specs: Sequence[RunSpec],
    *,
    seeds: Sequence[int],
    hashed: int,
    multiplications: int,
    error: float,
    accept: Collection[str],
    not_covered: Sequence[str],
    own_sizes: Mapping[str, int],
) -> Certificate:
    """The certificate of a proof.

    `candidate` and `reference` are the traces of the first seed, and `specs` their RunSpecs.
    `own_sizes` are the test's, if the proof has small ones in their place.
    """
    files = _source_files(specs[0])
    if own_sizes:
        given = specs[0].keywords
        small = {name: int(str(given[name])) for name in own_sizes}
        paths = [path for path in map(Path, files) if path.suffix == ".py"]
        not_covered = [*not_covered, *outside(own_sizes, small, candidate.point, paths)]
    met = {name for trace in (candidate, reference) for name in met_by(trace).calls}
    tensors, layouts = _tensors(candidate, reference)
    return Certificate(
        candidate=_side(candidate, specs[0]),
        reference=_side(reference, specs[1]),
        sources=_below(specs[0], files),
        seeds=tuple(seeds),
        hashed=hashed,
        multiplications=multiplications,
        error=error,
        accept=tuple(sorted(accept)),
        tensors=tensors,
        layouts=layouts,
        semantics={name: _module_of(name) for name in sorted(met)},
        assumes=_ASSUMES,
        own_sizes=dict(own_sizes),
        not_covered=tuple(not_covered),
        versions={name: version(name) for name in ("pytest-trainsafe", "torch")},
    )


def portable(spec: RunSpec) -> RunSpec:
    """A RunSpec without what differs between machines, and without the random residues."""
    return structs.replace(spec, file="", timeout=0.0, replay=None, sample=0)


def met_by(trace: Trace) -> OperatorsMet:
    """The operators that all ranks of a Run met together."""
    calls: Counter[str] = Counter()
    hashed = multiplications = decisions = 0
    for event in _events(trace):
        calls.update(event.calls)
        hashed += event.hashed
        multiplications += event.multiplications
        decisions += event.decisions
    return OperatorsMet(dict(sorted(calls.items())), hashed, multiplications, decisions)


def _events(trace: Trace) -> list[OperatorsMet]:
    return [event for rank in trace.ranks for event in rank.events_of(OperatorsMet)]


def _side(trace: Trace, spec: RunSpec) -> Side:
    events = _events(trace)
    return Side(
        spec=portable(spec),
        decisions=tuple(event.decisions for event in events),
        decided=tuple(event.decided for event in events),
        integers=tuple(event.integers for event in events),
        operators=met_by(trace).calls,
    )


def _module_of(operator: str) -> str:
    """The module that states what an operator computes, "moves" if it only moves numbers."""
    found = find(table(), operator)
    return "moves" if found is None or found.rule is None else found.rule.__module__


def _tensors(candidate: Trace, reference: Trace) -> tuple[dict[str, str], dict[str, str]]:
    """Shape and hash of each logical tensor that both sides have, and the candidate's layouts."""
    shared = set(candidate.ids())
    hashes, layouts = {}, {}
    for id in reference.ids():
        whole = logical_tensor(reference, id).tensor if id in shared else None
        if whole is None:
            continue
        digest = xxhash.xxh3_64_hexdigest(whole.contiguous().numpy().tobytes())
        hashes[str(id)] = f"{'x'.join(map(str, whole.shape)) or 'scalar'} {digest}"
        found = {describe(event.layout or ()) for _, event in candidate.holders(id)}
        layouts[str(id)] = "; ".join(sorted(found))
    return hashes, layouts


def _source_files(spec: RunSpec) -> dict[str, str]:
    """A hash of each file of the project that the program imports, by its path."""
    file, module, search = code_of(spec, LaunchEnvironment.now())
    if not os.path.isfile(file):
        return {}
    return {str(path): content_hash(path) for path in sources(Path(file), module, search).files}


def _below(spec: RunSpec, files: Mapping[str, str]) -> dict[str, str]:
    """Files by their paths relative to the folder from which the program's module is imported."""
    file, module, _ = code_of(spec, LaunchEnvironment.now())
    folder = os.path.dirname(file)
    for _ in range(module.count(".")):
        folder = os.path.dirname(folder)
    return {os.path.relpath(path, folder): files[path] for path in sorted(files)}
