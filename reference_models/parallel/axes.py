"""This rank's position on the parallel axes, and the planted bug, if any.  Used by every module."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from torch.distributed import ProcessGroup

from pytest_trainsafe.reference_models.bugs import find
from pytest_trainsafe.reference_models.parallel.techniques import Techniques, recompute_of

if TYPE_CHECKING:
    from pytest_trainsafe.record.context import Context

#: Axes that this model may not support, with the values at which they do not change the training.
ABSENT: dict[str, tuple[object, ...]] = {
    "ep": (1,),
    "zero": (0, 1),
}


@dataclass(frozen=True, slots=True)
class Axis:
    """One axis of ranks: its size, this rank's index, and the process group.

    An axis of one rank has no group, because it never communicates.
    """

    size: int = 1
    rank: int = 0
    group: ProcessGroup | None = None


@dataclass(frozen=True, slots=True)
class Axes:
    """The axes of this model, as this rank sees them.

    `sp` turns on sequence parallelism over `tp`.  `bug` is the name of the planted bug, or "".
    `vpp` is the number of chunks of layers on each pp rank.  `embedding` consists of the first and
    the last pipeline stage, if both hold a copy of a tied embedding (see `pipeline/tied.py`).
    `dp_cp` is dp and cp as one axis, on which cp varies fastest; gradients are averaged over it in
    buckets, and `zero`=1 shards the optimizer over it.  Experts are distributed over `ep` and
    replicated over `edp`, which together have the ranks of dp and cp (see
    `experts/expert_axes.py`).  `techniques` holds the choices that do not distribute work.
    """

    dp: Axis = Axis()
    tp: Axis = Axis()
    cp: Axis = Axis()
    pp: Axis = Axis()
    vpp: int = 1
    embedding: Axis = Axis()
    ep: Axis = Axis()
    edp: Axis = Axis()
    sp: bool = False
    bug: str = ""
    techniques: Techniques = field(default_factory=Techniques)
    dp_cp: Axis = Axis()
    zero: int = 0

    @property
    def bucketed(self) -> bool:
        """Whether gradients are averaged over dp and cp in buckets, and not summed one by one."""
        asked = self.techniques.bucket > 0 or self.techniques.overlap_grad_reduce
        return self.zero > 0 or (asked and self.dp_cp.size > 1)

    @property
    def alone(self) -> bool:
        """Whether this is a single device without ZeRO, recomputation or a planted bug."""
        sizes = (self.dp, self.tp, self.cp, self.pp)
        if any(axis.size > 1 for axis in sizes) or self.zero or self.bug:
            return False
        return self.techniques.recompute == "none"

    @classmethod
    def of(
        cls,
        ctx: Context,
        bug: str = "",
        techniques: Techniques | None = None,
        *,
        experts: bool = False,
    ) -> Axes:
        """Reads the axes from a context.  Raises ValueError for an unknown bug or axis.

        A model with `experts` supports the axis ep but not compile: how many tokens an expert
        gets depends on the tokens' values, so the shapes in a graph would not be fixed.
        """
        refused = [
            f"{axis}={value}"
            for axis, value in ctx.point
            if (value not in ABSENT.get(axis, (value,)) and not (experts and axis == "ep"))
            or (experts and axis == "compile" and value)
        ]
        if refused:
            raise ValueError(
                f"this reference model does not support {', '.join(refused)}; its axes are dp, tp, "
                "cp, pp, vpp, sp, zero, recompute and, without experts, compile. Take the "
                "unsupported axis out of the sweep"
            )
        if bug:
            find(bug)

        def axis(name: str) -> Axis:
            size = ctx.point.size(name)
            return Axis(size, ctx.coordinates[name], ctx.group(name)) if size > 1 else Axis()

        dp, tp, cp = axis("dp"), axis("tp"), axis("cp")
        # Sequence parallelism shards over the tp ranks, so it needs tensor parallelism.
        sp = bool(ctx.point.get("sp", False)) and tp.size > 1
        recompute = recompute_of(ctx.point.get("recompute", "none"))
        compile = bool(ctx.point.get("compile", False))
        techniques = replace(techniques or Techniques(), recompute=recompute, compile=compile)
        return cls(
            dp=dp,
            tp=tp,
            cp=cp,
            pp=axis("pp"),
            vpp=int(ctx.point.get("vpp", 1)),
            sp=sp,
            bug=bug,
            techniques=techniques,
            dp_cp=_together(ctx, dp, cp),
            zero=int(ctx.point.get("zero", 0)),
        )

    def planted(self, bug: str) -> bool:
        """Whether this bug is planted."""
        return self.bug == find(bug).name


def _together(ctx: Context, dp: Axis, cp: Axis) -> Axis:
    """dp and cp as one axis, with its ranks in the order of their numbers."""
    if dp.size == 1 or cp.size == 1:
        return cp if dp.size == 1 else dp
    group = ctx.mesh["dp", "cp"]._flatten("dp_cp").get_group()
    return Axis(dp.size * cp.size, dp.rank * cp.size + cp.rank, group)
