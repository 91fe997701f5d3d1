"""This rank's position on the parallel axes, and the planted bug.  Used by every module."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from torch.distributed import ProcessGroup

from pytest_trainsafe.reference_models.bugs import find
from pytest_trainsafe.reference_models.parallel.techniques import Techniques, recompute_of

if TYPE_CHECKING:
    from pytest_trainsafe.record.context import Context

#: Axes that change how a model is trained and that this one does not have, with the values that
#: leave it alone.
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
    """The axes of this model.  `sp` is sequence parallelism over `tp`; `bug` a name, or empty.

    `vpp` is the number of chunks of layers on each rank of pp.  `embedding` joins the first and
    the last stage where both hold a copy of one embedding (`pipeline/tied.py` makes it).  `dp_cp`
    is dp and cp as one, dp the slower: gradients are averaged over it in buckets, and `zero` (1)
    shares the optimizer out.  Experts are shared out over `ep` and held in common over `edp`;
    together these two are dp and cp (see `experts/expert_axes.py`).  `techniques` says what is done
    beside sharing work out.
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
        """Whether gradients are averaged over dp and cp in buckets, not summed one by one."""
        asked = self.techniques.bucket > 0 or self.techniques.overlap_grad_reduce
        return self.zero > 0 or (asked and self.dp_cp.size > 1)

    @property
    def alone(self) -> bool:
        """Whether this is a single device that trains in the plainest way, as a reference does."""
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
        """Read the axes from a context.  An unknown bug or axis raises ValueError.

        A model with `experts` knows the axis ep, and not compile: how many tokens an expert gets
        depends on their values, which no graph can hold.
        """
        refused = [
            f"{axis}={value}"
            for axis, value in ctx.point
            if (value not in ABSENT.get(axis, (value,)) and not (experts and axis == "ep"))
            or (experts and axis == "compile" and value)
        ]
        if refused:
            raise ValueError(
                f"this reference model has no {', '.join(refused)}; its parallel axes are dp, tp, "
                "cp, pp, vpp, sp, zero, recompute and, without experts, compile. Take the axis out "
                "of the sweep"
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
    """dp and cp as one axis, the ranks in the order of their numbers."""
    if dp.size == 1 or cp.size == 1:
        return cp if dp.size == 1 else dp
    group = ctx.mesh["dp", "cp"]._flatten("dp_cp").get_group()
    return Axis(dp.size * cp.size, dp.rank * cp.size + cp.rank, group)
