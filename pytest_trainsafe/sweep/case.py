"""A Case: one test at one Point, with all inputs of its reference and its candidate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pytest_trainsafe.config.settings import Settings
from pytest_trainsafe.core.mesh.sweep_axes import parallel_axes
from pytest_trainsafe.core.point import Point
from pytest_trainsafe.core.rungs.table import RECIPE, default_ladder, rung_named
from pytest_trainsafe.core.usage import excerpt, shown
from pytest_trainsafe.sweep.expectation import Expectation
from pytest_trainsafe.sweep.program import Program


@dataclass(frozen=True, slots=True)
class Case:
    """One test at one Point.

    `arguments` are the program's arguments in the reference, `candidate_arguments` those in the
    candidate (all of them, not only the differences).  `reference_pp` is the number of pipeline
    stages of the reference, 1 for a single device.  `settings` includes the settings of the marker.
    `expect` has the marker's expectations of random numbers.  `healthy` is whether invariants may
    be learned from the candidate.  `nodeid` is the pytest node id, by which the test can be rerun.
    """

    point: Point
    program: Program
    settings: Settings
    arguments: Mapping[str, object] = field(default_factory=dict)
    candidate_arguments: Mapping[str, object] = field(default_factory=dict)
    nodeid: str = ""
    reference_pp: int = 1
    expect: tuple[Expectation, ...] = ()
    healthy: bool = False

    @property
    def arguments_text(self) -> str:
        """The program's arguments at this Point, and how the reference's differ; "" for none."""
        own, trusted = self.candidate_arguments, self.arguments
        texts = []
        for name in dict.fromkeys((*own, *trusted)):
            text = f"{name}={shown(own[name])}" if name in own else f"no {name}"
            if name not in trusted:
                text += " (not in the reference)"
            elif name not in own or repr(own[name]) != repr(trusted[name]):
                text += f" (in the reference {shown(trusted[name])})"
            texts.append(text)
        return excerpt(", ".join(texts), 400)

    @property
    def dtype(self) -> str:
        """The dtype of the training recipe: that of the Point, or float32 if it has none.

        It is the name of a rung, such as "exact", if the Point is on this rung alone.
        """
        return str(self.point.get("dtype", RECIPE))

    @property
    def reference_point(self) -> Point:
        """The Point of the reference: without parallel axes, except `reference_pp` stages.

        The program's own axes are kept, except those that say how to train (`Traits.how`).
        """
        mesh = self.point.mesh
        point = self.point.without("dtype", *parallel_axes(mesh), *self.program.traits.how)
        if self.reference_pp == 1:
            return point
        return point.replace(**{mesh.members("pp")[-1]: self.reference_pp})

    @property
    def rungs(self) -> tuple[str, ...]:
        """The dtypes in which to judge, widest first, or as the settings list them.

        Without a setting these are float64, float32 and the dtype of the recipe; or the rung that
        the Point names as its dtype, alone.  A dtype that is narrower than the recipe's is left
        out.  So is a dtype in which the program cannot be a candidate, unless it is the recipe's.
        """
        if self.settings.dtypes:
            return self.settings.dtypes
        wanted = default_ladder(self.dtype)
        return tuple(d for d in wanted if d in self.program.traits.dtypes or d == self.dtype)

    def rungs_of(self, judge: str) -> tuple[str, ...]:
        """Those of `rungs` that a judge judges, by its name."""
        return tuple(name for name in self.rungs if rung_named(name).judge == judge)
