"""The runs of the parallel models that their tests look at; each takes four ranks."""

from __future__ import annotations

from rank_double import Job

from pytest_trainsafe.reference_models.bugs import BUGS
from pytest_trainsafe.sweep.point import Point

SMALL = {"layers": 1, "steps": 1}
ALL_OVER = Point.of(tp=2, cp=2, sp=True)

#: A Point at which each bug is planted and yet does nothing.
SILENT = {
    "tp-embedding-mask": Point.of(dp=2, cp=2),
    "cp-loss-scaling": Point.of(dp=2, tp=2, sp=True),
    "sp-layernorm-grads": Point.of(tp=2, cp=2),
}

JOBS = {
    "tp cp sp": Job(ALL_OVER),
    "dp tp clip": Job(Point.of(dp=2, tp=2), {"clip": 0.5}),
    "bfloat16": Job(ALL_OVER, SMALL, "bfloat16"),
    "llama": Job(ALL_OVER, program="llama"),
    "llama bfloat16": Job(ALL_OVER, SMALL, "bfloat16", program="llama"),
    **{f"{bug.name} planted": Job(ALL_OVER, {**SMALL, "bug": bug.name}) for bug in BUGS},
    **{f"{name} silent": Job(point, {**SMALL, "bug": name}) for name, point in SILENT.items()},
}
