"""Where this rank stands on the parallel axes, and which bug is planted.  Every module asks."""

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
    "zero": (0,),
    "compile": (False,),
}


@dataclass(frozen=True, slots=True)
class Axis:
    """One axis of ranks: how many, which of them this one is, and the group to talk over.

    An axis of one rank needs no group: nothing is ever said on it.
    """

    size: int = 1
    rank: int = 0
    group: ProcessGroup | None = None


@dataclass(frozen=True, slots=True)
class Axes:
    """The axes of this model.  `sp` is sequence parallelism over `tp`; `bug` a name, or empty.

    `vpp` is the number of chunks of layers on each rank of pp.  `embedding` joins the first and
    the last stage where both hold a copy of one embedding (`tied.py` makes it).  `techniques`
    says what is done beside sharing work out.
    """

    dp: Axis = Axis()
    tp: Axis = Axis()
    cp: Axis = Axis()
    pp: Axis = Axis()
    vpp: int = 1
    embedding: Axis = Axis()
    sp: bool = False
    bug: str = ""
    techniques: Techniques = field(default_factory=Techniques)

    @classmethod
    def of(cls, ctx: Context, bug: str = "", techniques: Techniques | None = None) -> Axes:
        """Read the axes from a context.  An unknown bug or axis raises ValueError."""
        refused = [
            f"{axis}={value}"
            for axis, value in ctx.point
            if value not in ABSENT.get(axis, (value,))
        ]
        if refused:
            raise ValueError(
                f"the reference GPT has no {', '.join(refused)}; its parallel axes are "
                "dp, tp, cp, pp, vpp, sp and recompute. Take the axis out of the sweep"
            )
        if bug:
            find(bug)

        def axis(name: str) -> Axis:
            size = ctx.point.size(name)
            return Axis(size, ctx.coordinates[name], ctx.group(name)) if size > 1 else Axis()

        tp = axis("tp")
        # Without tensor parallelism there is nobody to share a sequence with.
        sp = bool(ctx.point.get("sp", False)) and tp.size > 1
        recompute = recompute_of(ctx.point.get("recompute", "none"))
        techniques = replace(techniques or Techniques(), recompute=recompute)
        return cls(
            dp=axis("dp"),
            tp=tp,
            cp=axis("cp"),
            pp=axis("pp"),
            vpp=int(ctx.point.get("vpp", 1)),
            sp=sp,
            bug=bug,
            techniques=techniques,
        )

    def planted(self, bug: str) -> bool:
        """Whether this bug is planted."""
        return self.bug == find(bug).name
