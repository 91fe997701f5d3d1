"""The runs of the parallel models that the tests share; each takes four ranks."""

from __future__ import annotations

from pathlib import Path

from pytest_trainsafe.core.point import Point
from pytest_trainsafe.reference_models.bugs import BUGS, Bug
from tests.support.reference_models.rank_double import Job, record

SMALL = {"layers": 1, "steps": 1}
DROPPING = {"capacity_factor": 1.0}
ONE_MIXTURE = {"layers": 1, "dense_layers": 0, "clip": 0.5}
ALL_OVER = Point.of(tp=2, cp=2, sp=True)

#: The Point at which each bug is planted and has an effect, if not ALL_OVER.
PLANTED = {
    "cp-layernorm-grads": Point.of(tp=2, cp=2),
    "pp-stage-division": Point.of(pp=2, tp=2),
    "recompute-chunk-input": Point.of(tp=2, cp=2, sp=True, recompute="full"),
    "dp-gradient-scaling": Point.of(dp=2, cp=2),
    "zero-gather-lost": Point.of(dp=2, tp=2, zero=1),
    "zero-tied-embedding": Point.of(dp=2, pp=2, zero=1),
    "moe-router-grads": Point.of(dp=2, tp=2, sp=True),
    "fp8-stale-weight": Point.of(tp=2, cp=2, sp=True, recompute="full"),
}

#: A Point at which each bug has no effect.
SILENT = {
    "tp-embedding-mask": Point.of(dp=2, cp=2),
    "tp-overlap-dgrad": Point.of(dp=2, cp=2),
    "cp-loss-scaling": Point.of(dp=2, tp=2, sp=True),
    "cp-attention-backward-layout": Point.of(dp=2, tp=2),
    "cp-layernorm-grads": ALL_OVER,
    "sp-layernorm-grads": Point.of(tp=2, cp=2),
    "pp-stage-division": Point.of(tp=2, cp=2),
    "recompute-chunk-input": Point.of(tp=2, cp=2, recompute="selective"),
    "dp-gradient-scaling": Point.of(dp=2, tp=2),
    "zero-gather-lost": Point.of(dp=2, tp=2),
    "zero-tied-embedding": Point.of(dp=2, tp=2, zero=1),
    "moe-router-grads": Point.of(dp=2, tp=2),
    "fp8-amax-group": Point.of(dp=2, cp=2),
    "fp8-stale-weight": Point.of(dp=2, tp=2, recompute="selective"),
}

#: Arguments of pipelines: 5 layers, which 2 or 4 stages cannot share equally.
DEEP = {"layers": 5, "microbatches": 4, "clip": 0.5}
TIED = {**DEEP, "tied": True}


def arguments(bug: Bug) -> dict[str, object]:
    """The arguments of the single-device run that is compared with a run that has the bug."""
    return {**SMALL, "steps": max(bug.step, 0) + 1, **bug.arguments}


def _job(bug: Bug, point: Point) -> Job:
    return Job(point, {**arguments(bug), "bug": bug.name}, program=bug.program)


BUCKETS = {"overlap_grad_reduce": True, "bucket": 10_000}
SHARED = {**BUCKETS, "overlap_param_gather": True}

JOBS = {
    "buckets": Job(Point.of(dp=2, cp=2), BUCKETS),
    "buckets of all": Job(Point.of(dp=2, tp=2), {"bucket": 10**9, "clip": 0.5}),
    "buckets bfloat16": Job(Point.of(dp=2, tp=2), {**BUCKETS, **SMALL}, "bfloat16"),
    "zero": Job(Point.of(dp=2, tp=2, zero=1), {"clip": 0.5}),
    "zero over cp": Job(Point.of(dp=2, cp=2, zero=1), SHARED),
    "zero sp": Job(ALL_OVER.replace(zero=1), SHARED),
    "zero bfloat16": Job(ALL_OVER.replace(zero=1), {**SHARED, **SMALL}, "bfloat16"),
    "cnn": Job(Point.of(dp=4), {"overlap_grad_reduce": True, "bucket": 1000}, program="cnn"),
    "cnn zero": Job(Point.of(dp=4, zero=1), {**SHARED, "bucket": 1000}, program="cnn"),
    "lstm": Job(Point.of(dp=4), program="lstm"),
    "lstm zero": Job(Point.of(dp=4, zero=1), SHARED, program="lstm"),
    "zero pipeline": Job(Point.of(pp=2, dp=2, zero=1), {**TIED, **SHARED}),
    "tp cp sp": Job(ALL_OVER),
    "dp tp clip": Job(Point.of(dp=2, tp=2), {"clip": 0.5}),
    "bfloat16": Job(ALL_OVER, SMALL, "bfloat16"),
    "llama": Job(ALL_OVER, program="llama"),
    "llama bfloat16": Job(ALL_OVER, SMALL, "bfloat16", program="llama"),
    "moe": Job(ALL_OVER, DROPPING, program="moe"),
    "moe ep": Job(Point.of(dp=2, cp=2, ep=4), DROPPING, program="moe"),
    "moe ep tp": Job(Point.of(dp=2, tp=2, sp=True, ep=2), {"clip": 0.5}, program="moe"),
    "deepseek": Job(ALL_OVER, {**ONE_MIXTURE, "cp_method": "ring"}, program="deepseek"),
    "deepseek ep": Job(
        Point.of(dp=2, tp=2, ep=2, zero=1, recompute="full"), ONE_MIXTURE, program="deepseek"
    ),
    "ring of two": Job(Point.of(tp=2, cp=2), {"cp_method": "ring", **SMALL}),
    "ring of four": Job(Point.of(cp=4), {"cp_method": "ring", **SMALL}),
    "ring bfloat16": Job(Point.of(cp=4), {"cp_method": "ring", **SMALL}, "bfloat16"),
    "llama ring": Job(Point.of(tp=2, cp=2), {"cp_method": "ring", **SMALL}, program="llama"),
    "llama recompute": Job(ALL_OVER.replace(recompute="full"), SMALL, program="llama"),
    "overlap": Job(Point.of(tp=4), {"tp_overlap": True, **SMALL}),
    "overlap sp": Job(ALL_OVER, {"tp_overlap": True, **SMALL}),
    "recompute": Job(ALL_OVER.replace(recompute="full"), {"recompute_num_layers": 2}),
    "recompute attention": Job(ALL_OVER.replace(recompute="selective"), {"cp_method": "ring"}),
    "pipeline": Job(Point.of(pp=4), TIED),
    "pipeline tp": Job(Point.of(pp=2, tp=2, sp=True), TIED),
    "pipeline interleaved": Job(Point.of(pp=2, vpp=2, dp=2), TIED),
    "pipeline untied": Job(Point.of(pp=2, vpp=2, cp=2), DEEP),
    "pipeline gpipe": Job(Point.of(pp=2, vpp=2, dp=2), {**DEEP, "schedule": "gpipe"}),
    "pipeline bfloat16": Job(Point.of(pp=2, tp=2), {**TIED, "steps": 1}, "bfloat16"),
    "llama pipeline": Job(Point.of(pp=4), DEEP, program="llama"),
    "fp8": Job(ALL_OVER, {"fp8": True}),
    "fp8 dp tp": Job(Point.of(dp=2, tp=2), {"fp8": True}),
    "fp8 pipeline": Job(Point.of(pp=2, tp=2, sp=True), {"fp8": True}),
    "fp8 overlap": Job(ALL_OVER.replace(recompute="full"), {"fp8": True, "tp_overlap": True}),
    **{f"{bug.name} planted": _job(bug, PLANTED.get(bug.name, ALL_OVER)) for bug in BUGS},
}

#: Runs on a single device.
ALONE = {
    **{bug.name: Job(arguments=arguments(bug), program=bug.program) for bug in BUGS},
    "default": Job(),
    "fp8": Job(arguments={"fp8": True}),
    "clip": Job(arguments={"clip": 0.5}),
    "cnn": Job(program="cnn"),
    "lstm": Job(program="lstm"),
    "small": Job(arguments=SMALL),
    "llama": Job(program="llama"),
    "moe": Job(arguments=DROPPING, program="moe"),
    "moe clip": Job(arguments={"clip": 0.5}, program="moe"),
    "deepseek": Job(arguments=ONE_MIXTURE, program="deepseek"),
    "small llama": Job(arguments=SMALL, program="llama"),
    "llama bfloat16": Job(arguments=SMALL, dtype="bfloat16", program="llama"),
    "deep": Job(arguments=DEEP),
    "tied": Job(arguments=TIED),
    "tied bfloat16": Job(arguments={**TIED, "steps": 1}, dtype="bfloat16"),
    "deep llama": Job(arguments=DEEP, program="llama"),
    "small bfloat16": Job(arguments=SMALL, dtype="bfloat16"),
}


#: Jobs that compute while they communicate.  Only with ranks that are processes can such a job read
#: a result for which it has not waited.
OVERLAPPING = {
    name: job for name, job in JOBS.items() if any("overlap" in each for each in job.arguments)
}
IN_TURN = {name: job for name, job in JOBS.items() if name not in OVERLAPPING}


def run_overlapping(folder: str) -> None:
    """Run the overlapping jobs in this rank's group; the outcomes are written into the folder."""
    record(OVERLAPPING, Path(folder))


def run_in_turn(folder: str) -> None:
    """Run the other jobs in this rank's group; the outcomes are written into the folder."""
    record(IN_TURN, Path(folder))
