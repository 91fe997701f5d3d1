"""Arranges the draws in a trace's RNG ledgers, so that ranks can be compared draw by draw."""

from __future__ import annotations

import math
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from pytest_trainsafe.core.code_files import relative
from pytest_trainsafe.core.finding import Finding
from pytest_trainsafe.core.mesh import elsewhere
from pytest_trainsafe.core.tensor_id import TensorId
from pytest_trainsafe.trace.reader import RankTrace, Trace
from pytest_trainsafe.trace.rng.events import MASKS, DrawEvent

#: The place of a draw: step, micro-batch, module ("" for none), and its number, from 0, among the
#: draws of its phase there.
Site = tuple[int, int | None, str, int]

#: The line in the name of a NumPy generator, which the ledger gives it.
_MADE_AT = re.compile(r"^numpy\.random\.Generator of (.+:\d+)(?:, number \d+)?$")

#: The operators that dropout draws with where a program calls it as a function. A Bernoulli draw
#: with other operators may select data.
_FUNCTIONS = MASKS - {"bernoulli_.Tensor", "bernoulli.out", "bernoulli.p"}


#: The operators that draw integers below a bound, as `torch.randint` does, in words.
_INTEGERS = dict.fromkeys(("random_.from", "random_.to"), "random integers")


@dataclass(frozen=True, slots=True, eq=False)
class Draw:
    """One draw of one rank. `order` is its event's position among all events of the rank."""

    rank: RankTrace
    event: DrawEvent
    order: int
    site: Site

    @property
    def is_mask(self) -> bool:
        """Whether the draw masks a tensor in a module's forward, as dropout does.

        Draws of a single number do not count: they decide whether a whole module runs, and
        ranks may have to agree on that.
        """
        event = self.event
        return (
            event.phase == "forward"
            and event.module is not None
            and math.prod(event.shape) > 1
            and (event.operator in MASKS or self._has_one_number_for_each_row())
        )

    def _has_one_number_for_each_row(self) -> bool:
        """Whether a module draws one uniform number for each row of the tensor that it returns.

        Stochastic depth does so if it rounds `torch.rand((len(x), 1, 1))` to a mask.
        """
        event = self.event
        if event.operator != "uniform_" or {*event.shape[1:]} != {1}:
            return False
        step, microbatch, module, number = self.site
        for call in dict.fromkeys((number, 0)):
            id = TensorId(step, microbatch, "activation", module, "output", call)
            output = self.rank.tensors.get(id)
            if output is not None and len(output.shape) == len(event.shape):
                return output.shape[0] == event.shape[0] and output.shape != event.shape
        return False

    @property
    def is_function_mask(self) -> bool:
        """Whether the draw masks a tensor in a function that runs outside of modules.

        Such a function is `F.dropout` in the training loop, or in a method of a model that is not
        its forward. It draws from a default generator.
        """
        event = self.event
        return (
            event.phase == "data"
            and event.module is None
            and event.microbatch is not None
            and event.generator.startswith("torch ")
            and event.operator in _FUNCTIONS
            and math.prod(event.shape) > 1
        )

    @property
    def place(self) -> str:
        """What the pattern of `expect_rng` must match: the module or, outside of modules, the line.

        The line is the name of its file with the line's number. If it is not known, the line that
        made the generator takes its place, or "" if that is not known either.
        """
        if self.event.module is not None:
            return self.event.module
        if not self.event.line and (made := _MADE_AT.search(self.event.generator)):
            return made[1]
        return line_place(self.event.line)

    @property
    def where(self) -> TensorId | None:
        """The id of the output of the module that drew; None for a draw outside of modules."""
        if self.event.module is None:
            return None
        step, microbatch, module, _ = self.site
        return TensorId(step, microbatch, "activation", module, "output")

    def is_about(self, finding: Finding) -> bool:
        """Whether a Finding is about this draw, by its module or, outside of modules, its line.

        That is the line of the draw, or the one that seeds its generator.
        """
        if finding.where is not None:
            return self.where == finding.where
        return bool(finding.source) and finding.source in (self.event.line, self.event.seeded)


@dataclass(slots=True)
class Draws:
    """The draws of every rank of a trace, in order of time."""

    trace: Trace
    by_rank: list[list[Draw]] = field(default_factory=list)

    @classmethod
    def of(cls, trace: Trace) -> Draws:
        """Arrange the draws of a trace."""
        return cls(trace, [list(_of_rank(rank)) for rank in trace.ranks])

    def masks(self, rank: int, *, functions: bool = False) -> list[Draw]:
        """A rank's draws of masks, such as dropout's, in forwards of the training.

        If the program marks micro-batches, forwards outside of them do not count. With
        `functions`, masks that are drawn outside of modules are included.
        """
        marked = not self.trace.ranks[rank].note("level")
        return [
            draw
            for draw in self.by_rank[rank]
            if (draw.is_mask and (not marked or draw.event.microbatch is not None))
            or (functions and draw.is_function_mask)
        ]

    def groups(self, axis: str) -> Iterator[list[int]]:
        """Yields groups of the ranks whose coordinates differ only on the axis `axis`.

        `axis` is a mesh axis, or a role such as dp, which stands for all mesh axes that have it.
        """
        groups: dict[tuple[tuple[str, int], ...], list[int]] = {}
        for rank in self.trace.ranks:
            groups.setdefault(elsewhere(rank.coordinates, (axis,)), []).append(rank.rank)
        yield from (group for group in groups.values() if len(group) > 1)

    def apart(self, left: int, right: int) -> frozenset[str]:
        """The mesh axes along which the coordinates of two ranks differ."""
        one, other = (self.trace.ranks[rank].coordinates for rank in (left, right))
        return frozenset(axis for axis in one if one[axis] != other[axis])

    def name(self, role: str) -> str:
        """The name for reports of what has a role: its mesh axis; the role if it has several."""
        sizes = self.trace.sizes
        axes = [axis for axis in sizes.mesh.members(role) if sizes[axis] > 1]
        return axes[0] if len(axes) == 1 else role


def line_place(line: str) -> str:
    """What the pattern of `expect_rng` must match for a line: its file's name and its number."""
    return os.path.basename(line)


def _of_rank(rank: RankTrace) -> Iterator[Draw]:
    counts: Counter[tuple[str, int, int | None, str | None]] = Counter()
    for order, event in enumerate(rank.events):
        if isinstance(event, DrawEvent):
            key = event.phase, event.step, event.microbatch, event.module
            yield Draw(
                rank,
                event,
                order,
                (event.step, event.microbatch, event.module or "", counts[key]),
            )
            counts[key] += 1


def describe_draw(draw: Draw) -> str:
    """A description of a draw: the operator, the shape, the module and the line."""
    event = draw.event
    shape = "x".join(map(str, event.shape)) or "one number"
    name = _INTEGERS.get(event.operator) or event.operator.partition(".")[0].strip("_")
    if not name:  # only the change of the generator's state is known
        name, shape = "a draw of unknown size", ""
    elif event.operator.startswith(("random.", "numpy.")):
        name, shape = event.operator, ""
    where = f" in {event.module or 'the root module'}" if event.module is not None else ""
    at = f" at {relative(event.line)}" if event.line else ""
    return f"{name}{f' ({shape})' if shape else ''}{where}{at}"


def masked(draw: Draw) -> str:
    """What a mask is, in the text of a finding: only the operator shows that it is dropout."""
    return "dropout" if draw.event.operator in MASKS else "random numbers"


def stream_of(draw: Draw) -> str:
    """A description of the generator of a draw, with its seed, its state, and their lines."""
    event = draw.event
    seed = f", seed {event.seed}" if event.seed else ""
    seed += f", seeded at {relative(event.seeded)}" if event.seeded else ""
    seed += f", its state set at {relative(event.restored)}" if event.restored else ""
    stream = f", stream {event.stream!r}" if event.stream else ""
    return f"{event.generator}{stream}{seed}, state {event.before}"


def when(draw: Draw) -> str:
    """The step and the micro-batch of a draw."""
    step, microbatch = draw.event.step, draw.event.microbatch
    return f"step {step}" + ("" if microbatch is None else f", micro-batch {microbatch}")


def first(draws: Iterable[Draw]) -> Draw:
    """The first draw by step, then by the position of its event on the rank."""
    return min(draws, key=lambda draw: (draw.event.step, draw.order))
