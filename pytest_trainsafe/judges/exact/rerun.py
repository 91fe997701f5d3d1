"""Runs a certificate again: its program trains on the same and on fresh random residues.

The Runs of the first seed must give every field of the certificate, so that an edit of any of them
is noticed; those of fresh seeds must agree, so that the proof does not rest on chosen seeds.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

from pytest_trainsafe.config.settings import Settings
from pytest_trainsafe.core.mesh import Mesh
from pytest_trainsafe.core.point import Point
from pytest_trainsafe.core.untrusted import shown
from pytest_trainsafe.errors import SweepError, TrainsafeError
from pytest_trainsafe.frameworks import BUILT_IN
from pytest_trainsafe.judges.contract import JudgeOptions
from pytest_trainsafe.judges.exact import RUNG
from pytest_trainsafe.judges.exact.certificate import Certificate, differences
from pytest_trainsafe.judges.exact.certify import portable
from pytest_trainsafe.judges.exact.proof import MOST_SEEDS, ProofJudgement, proof_of
from pytest_trainsafe.judges.exact.types import TensorType, observed_types
from pytest_trainsafe.launch import Script
from pytest_trainsafe.runs.session import Session
from pytest_trainsafe.runs.specs import Role, spec_of
from pytest_trainsafe.runs.traces import Runs
from pytest_trainsafe.sweep.case import Case
from pytest_trainsafe.sweep.program import Program, resolve
from pytest_trainsafe.sweep.validity import invalid
from pytest_trainsafe.trace.run_spec import RunSpec

#: Fresh samples of residues are drawn from above those that a proof uses.
_FRESH = 2**40


class RefusedError(TrainsafeError):
    """A certificate does not hold; the message says which field, or why it cannot be run."""


@dataclass(frozen=True)
class Confirmed:
    """What running a certificate again gave: the fresh seeds, and the bound with them alone.

    `types` has the types of tensors, if they were asked for.
    """

    samples: tuple[int, ...]
    error: float
    tensors: int
    types: tuple[TensorType, ...] = ()


def rerun(
    certificate: Certificate,
    folder: Path,
    settings: Settings,
    types: bool = False,
    least: int = 1,
) -> Confirmed:
    """Proves a certificate again, in Runs below `folder`.

    `settings` gives the largest world size and the timeout; at least `least` fresh seeds are taken.
    Raises RefusedError if the certificate
    does not say what the Runs give, or if fresh seeds refute it; GroupFailure if ranks end.
    """
    case = case_of(certificate, settings)
    session = Session(case.settings, folder)
    try:
        runs = Runs(session.candidate(case), session.reference(case))
        options = JudgeOptions(accept=frozenset(certificate.accept))
        own = certificate.own_sizes
        again = proof_of(case, runs, options, own_sizes=own)
        first = _proved(again, "the seeds of the certificate")
        found = differences(certificate, first)
        if found:
            raise RefusedError(_refusal(found, certificate, first))
        chance = random.SystemRandom()
        samples = [_FRESH + chance.randrange(_FRESH) for _ in range(max(MOST_SEEDS, least))]
        seen = observed_types(runs.candidate.at(RUNG), runs.reference.at(RUNG)) if types else ()
        observed = tuple(seen)
        fresh = _proved(proof_of(case, runs, options, samples, own, least=least), "fresh seeds")
    finally:
        session.close()
    return Confirmed(fresh.seeds, fresh.error, len(first.tensors), observed)


def case_of(certificate: Certificate, settings: Settings) -> Case:
    """The Case of a certificate's Runs.  Raises RefusedError if such Runs cannot be made."""
    candidate, reference = certificate.candidate.spec, certificate.reference.spec
    try:
        program = _program(candidate)
        point, baseline = (_point(spec) for spec in (candidate, reference))
        arguments, candidate_arguments = reference.keywords, candidate.keywords
        complete = program.complete(candidate_arguments)
        found = invalid(point, complete, program.rules, settings.max_world_size)
    except (TrainsafeError, ValueError, TypeError, RecursionError) as error:
        raise RefusedError(f"the certificate's Runs cannot be made: {shown(error)}") from error
    if found is not None:
        raise RefusedError(f"the certificate's Point {shown(point)} cannot be run: {shown(found)}")
    stages = baseline.size(point.mesh.members("pp")[-1]) if point.mesh.members("pp") else 1
    made = settings._replace(
        dtypes=(RUNG,),
        seed=candidate.seed,
        device=candidate.device,
        record_kinds=candidate.kinds,
        record_modules=candidate.modules,
        adapters=candidate.adapters[len(BUILT_IN) :],
        rng=candidate.rng,
        localize=0.0,
        accept=(),
    )
    case = Case(*(point, program, made, arguments, candidate_arguments), reference_pp=stages)
    sides: tuple[tuple[Role, RunSpec], ...] = (("candidate", candidate), ("reference", reference))
    for role, spec in sides:
        if portable(spec_of(case, role, RUNG)) != spec:
            raise RefusedError(
                f"{role}.spec: this version would not make this Run of the {role}; it was edited, "
                "or the program's declarations changed. Prove the test again"
            )
    return case


def _program(spec: RunSpec) -> Program:
    if spec.script:
        return resolve(Script(spec.script, list(spec.script_args)))
    return resolve(spec.program)


def _point(spec: RunSpec) -> Point:
    point = Point(spec.axes, Mesh.of(spec.mesh))
    for axis in (*point.mesh.axes, *point.mesh.overlaps):
        size = point.get(axis, 1)
        if type(size) is not int or size < 1:
            raise SweepError(f"the size of {axis} is {shown(repr(size), 40)}")
    return point


def _proved(judgement: ProofJudgement, seeds: str) -> Certificate:
    if judgement.certificate is None:
        first = judgement.findings[0]
        raise RefusedError(
            f"with {seeds}, the verdict is {judgement.verdict!r}, not a proof: {first.about} "
            f"{first.message}"
        )
    return judgement.certificate


def _refusal(found: list[str], certificate: Certificate, first: Certificate) -> str:
    lines = found[:5]
    if len(found) > len(lines):
        lines.append(f"and {len(found) - len(lines)} more")
    if certificate.versions != first.versions:
        lines.append(
            f"it was made with {shown(certificate.versions)}, and these Runs with "
            f"{shown(first.versions)}"
        )
    return "the certificate does not say what its Runs give:\n  " + "\n  ".join(lines)
