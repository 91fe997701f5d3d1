"""Compares a module's inputs, and their gradients, with the reference's.

An input that is another module's output has that output's layout.  An input that is computed
between two modules has no declared layout: it agrees if the ranks' parts match the reference in
*some* layout that the Point allows.  `Compared` says which tensors both sides recorded.  Called by
`judges.compare.localize.blame`, after the comparison.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator
from functools import cached_property
from typing import Literal, TypeGuard

import numpy as np
import torch

from pytest_trainsafe.align.logical import logical_tensor, parts_of
from pytest_trainsafe.align.merge import Part, merge
from pytest_trainsafe.core.indices import LayoutError
from pytest_trainsafe.core.layout import (
    Layout,
    Partial,
    Placement,
    Scaled,
    Shard,
    Split,
    Striped,
    ZigZag,
)
from pytest_trainsafe.core.tensor_id import INITIAL, TensorId
from pytest_trainsafe.judges.compare.events import UNKNOWN
from pytest_trainsafe.judges.compare.explain.held import parameter_of
from pytest_trainsafe.judges.compare.kinds.dealt import Dealt
from pytest_trainsafe.judges.compare.localize.stages import is_input
from pytest_trainsafe.judges.compare.rung import RungTraces
from pytest_trainsafe.judges.compare.tensors.errors import finite
from pytest_trainsafe.judges.compare.tensors.tensor import judge_tensor
from pytest_trainsafe.trace.facts import Caller
from pytest_trainsafe.trace.local_key_paths import is_local
from pytest_trainsafe.trace.reader import Trace

#: The orders in which ranks of cp divide sequences, in words.
ORDERS: dict[type[Split], str] = {Shard: "contiguous", ZigZag: "zigzag", Striped: "striped"}


class Inputs:
    """Compares modules' inputs in `rung`, the traces in one dtype, each when first asked for."""

    def __init__(self, rung: RungTraces) -> None:
        self.rung = rung
        self._agrees: dict[TensorId, bool | None] = {}
        #: The layout in which each input agrees, and the other order of each wrong output.
        self._layout: dict[TensorId, Layout] = {}
        self._order: dict[TensorId, Split | None] = {}
        layouts = (
            event.layout
            for rank in rung.candidate.ranks
            for id, event in rank.tensors.items()
            if id.kind in ("activation", "activation_grad")
        )
        self._declared = list(dict.fromkeys(layouts))
        placed = (placement for layout in self._declared for placement in layout)
        #: The declared scaling of gradients before a reduction that averages.
        self._scaled: Layout = tuple({p: None for p in placed if isinstance(p, Scaled)})

    def agrees(self, id: TensorId) -> bool:
        """Whether the candidate's tensor is known to match the reference's."""
        return self._known(id) is True

    def differs(self, id: TensorId) -> bool:
        """Whether the candidate's tensor is known to differ from the reference's."""
        return self._known(id) is False

    def _known(self, id: TensorId) -> bool | None:
        if id not in self._agrees:
            self._agrees[id] = self._judge(id)
        return self._agrees[id]

    def source(self, id: TensorId) -> str:
        """ "output of NAME" if the input is the output of the module NAME, else UNKNOWN."""
        holders = self.rung.candidate.holders(id)
        return holders[0][1].layout_source if holders else UNKNOWN

    def _judge(self, id: TensorId) -> bool | None:
        """Whether the candidate's tensor equals the reference's up to rounding; None if unknown."""
        if not (self.rung.candidate.holders(id) and self.rung.reference.holders(id)):
            return None
        reference = logical_tensor(self.rung.reference, id).whole
        if reference is None or not finite(reference.numpy()):
            return None
        parts = parts_of(self.rung.candidate, id)
        known = parts[0].layout_source != UNKNOWN
        shape = tuple(reference.shape)
        layouts = [parts[0].layout] if known else self._layouts(id, shape, parts)
        found = self._fitting(id, reference, parts, layouts)
        if found is not None:
            self._layout[id] = found
            return True
        if not reference.is_floating_point() and not self._owes(parts, reference):
            return None
        return False

    def _fitting(
        self, id: TensorId, reference: torch.Tensor, parts: list[Part], layouts: Iterable[Layout]
    ) -> Layout | None:
        """The first of `layouts` in which the ranks' parts equal the reference up to rounding."""
        traces = self.rung.measures()
        measured = [logical_tensor(t, id).whole for t in traces if t.holders(id)]
        others = [m.numpy() for m in measured if m is not None and m.shape == reference.shape]
        sizes, shape = self.rung.candidate.sizes, tuple(reference.shape)
        for layout in layouts:
            laid = [Part(p.rank, p.coordinates, p.tensor, layout) for p in parts]
            try:
                free, numbers = ("pp", "dp"), self.rung.numbers
                merged = merge(laid, sizes, shape=shape, free_axes=free, where=id, numbers=numbers)
            except (LayoutError, IndexError):
                continue  # a layout for tensors with more dimensions
            if merged.tensor is None or merged.findings:
                continue
            if others and reference.is_floating_point():
                wide = merged.tensor.numpy(), reference.numpy()
                if judge_tensor(*wide, others, self.rung.dtype).passed:
                    return layout
            elif np.array_equal(merged.tensor.numpy(), reference.numpy()):
                return layout
        return None

    def out_of_order(self, given: Iterable[TensorId], output: TensorId) -> list[TensorId]:
        """Of the inputs of a module or of its callers, those that explain its wrong output.

        The output is wrong in the order over cp that its layout declares, and right in another one,
        in which these inputs are.  So what passes them has the wrong order, and not the module.
        """
        if output.kind != "activation":
            return []
        if output not in self._order:
            self._order[output] = self._other_order(output)
        wrong = self._order[output]
        if wrong is None:
            return []
        agreeing = [id for id in given if self.agrees(id)]
        return [id for id in agreeing if self._ordered(self._layout[id], wrong.axis) is type(wrong)]

    def order(self, given: Iterable[TensorId], output: TensorId) -> str:
        """What `out_of_order` found of an output, in words; "" if it found none of `given`."""
        wrong = self._order.get(output)
        if wrong is None or not self.out_of_order(given, output):
            return ""
        declared = self._ordered(parts_of(self.rung.candidate, output)[0].layout, wrong.axis)
        assert declared is not None
        return (
            f"it is divided over {wrong.axis} in {ORDERS[type(wrong)]} order, and the layout of "
            f"{output.module or 'the model'} declares {ORDERS[declared]} order"
        )

    def _other_order(self, output: TensorId) -> Split | None:
        """The placement over cp with which an output agrees, instead of the declared one."""
        parts = parts_of(self.rung.candidate, output)
        reference = logical_tensor(self.rung.reference, output).whole
        if not parts or reference is None:
            return None
        layout = parts[0].layout
        for number, placement in enumerate(layout):
            if not self._orders(placement):
                continue
            others = (made for made in ORDERS if made is not type(placement))
            for other in (made(placement.dim, placement.axis) for made in others):
                swapped = (*layout[:number], other, *layout[number + 1 :])
                if self._fitting(output, reference, parts, [swapped]) is not None:
                    return other
        return None

    def _ordered(self, layout: Layout, axis: str) -> type[Split] | None:
        """How a layout divides over an axis."""
        found = (type(each) for each in layout if self._orders(each) and each.axis == axis)
        return next(found, None)

    def _orders(self, placement: Placement) -> TypeGuard[Split]:
        """Whether a placement divides sequences over cp, for which there are several orders."""
        role = self.rung.candidate.sizes.mesh.role
        return isinstance(placement, Split) and role(placement.axis) == "cp"

    def _owes(self, parts: list[Part], reference: torch.Tensor) -> bool:
        """Whether an integer input without a declared layout must equal the reference's.

        The input may differ from the reference's if each rank numbers its own data, such as the
        rows of a shard or the positions in a part of the sequence.  The ranks are assumed to do so
        if their tensors have the reference's shape but differ from each other, or if their tensors
        are smaller but equal to each other.
        """
        first = parts[0].tensor
        equal = all(torch.equal(part.tensor, first) for part in parts)
        return equal == (first.shape == reference.shape)

    def _layouts(self, id: TensorId, shape: tuple[int, ...], parts: list[Part]) -> Iterator[Layout]:
        """Yields layouts in which the parts make a tensor of `shape`, likely layouts first.

        A layout with partial sums is tried only if some tensor declares it: elsewhere, parts that
        sum to the reference mostly mean that a reduction is missing.
        """
        local = tuple(parts[0].tensor.shape)
        if len(local) != len(shape):
            return
        seen = set()
        gradient = id.kind == "activation_grad"
        besides = self._scaled if gradient else ()
        cuts = (cut + besides for cut in self._cuts(shape))
        for layout in itertools.chain(self._declared, cuts):
            if layout not in seen and self._fits(layout, shape, local):
                seen.add(layout)
                yield layout

    def _cuts(self, shape: tuple[int, ...]) -> Iterator[Layout]:
        """Yields every layout that shards at most one dimension over cp and one over tp."""
        choices: list[list[Layout]] = []
        for axis in ("cp", "tp"):
            cuts: list[Layout] = [()]
            if self.rung.candidate.sizes[axis] > 1:
                for dim, length in enumerate(shape):
                    cuts += [(cut,) for cut in _ways(dim, length, axis)]
            choices.append(cuts)
        for outer, inner in itertools.product(*choices):
            yield outer + inner

    def _fits(self, layout: Layout, shape: tuple[int, ...], local: tuple[int, ...]) -> bool:
        whole = list(local)
        for placement in layout:
            if isinstance(placement, Split):
                if placement.dim >= len(shape):
                    return False
                whole[placement.dim] *= self.rung.candidate.sizes[placement.axis]
                blocks = placement.blocks if isinstance(placement, Shard) else ()
                if blocks and sum(blocks) != shape[placement.dim]:
                    return False
            elif not isinstance(placement, Partial | Scaled):
                return False
        return tuple(whole) == shape


def _ways(dim: int, length: int, axis: str) -> Iterator[Placement]:
    yield Shard(dim, axis)
    if axis == "cp":
        yield ZigZag(dim, axis)
        yield Striped(dim, axis)
    else:  # fused projections: gate and up; queries, keys and values
        for fused in (2, 3):
            if length % fused == 0:
                yield Shard(dim, axis, (length // fused,) * fused)


def callers_of(trace: Trace) -> dict[str, str]:
    """Maps the name of each module to the name of the module that first called it."""
    found = [fact for rank in trace.ranks for fact in rank.events_of(Caller)]
    return {fact.module: fact.by for fact in reversed(found)}


class Compared:
    """The tensors that both the candidate and its reference recorded."""

    def __init__(self, rung: RungTraces) -> None:
        self.rung = rung
        self.local = {name for rank in rung.candidate.ranks for name in rank.note("local")}

    def has(self, kind: str) -> bool:
        """Whether any tensor of a kind was compared."""
        return any(id.kind == kind and id.step != INITIAL for id in self._both)

    def states(self, names: Collection[str]) -> bool:
        """Whether a state of the optimizer was compared for each of the parameters `names`."""
        ids = (id for id in self._both if id.kind == "optimizer_state")
        return {parameter_of(id) for id in ids} >= {*names}

    def gradient(self, path: str) -> bool:
        """Whether any micro-batch's gradient of a parameter was compared."""
        return path in self._gradients

    @cached_property
    def differentiated(self) -> frozenset[tuple[int, int | None]]:
        """The step and micro-batch of each backward of which the candidate has gradients."""
        ids = self.rung.candidate.ids()
        return frozenset((id.step, id.microbatch) for id in ids if id.kind == "param_grad")

    @cached_property
    def parameters(self) -> int:
        """The number of parameters that were compared."""
        return len({id.path for id in self._both if id.kind == "param"})

    @cached_property
    def trained(self) -> frozenset[str]:
        """The paths of the compared parameters that have a gradient in any step."""
        kinds = ("param_grad", "main_grad")
        with_gradient = {id.path for id in self.rung.reference.ids() if id.kind in kinds}
        return frozenset(id.path for id in self._both if id.kind == "param") & with_gradient

    def inputs(self, module: str) -> bool:
        """Whether any input of a module was compared."""
        return any(
            id.module == module and id.kind == "activation" and is_input(id) for id in self._both
        )

    def modules(self, *kinds: Literal["activation", "activation_grad"]) -> str:
        """The modules whose tensors of all `kinds` were compared, in words; "" if there is none."""
        owed: dict[str, None] = {}
        lacking: dict[str, None] = {}
        for kind in kinds:
            due = self._having(kind, self.rung.reference.ids())
            found = self._having(kind, self._both)
            owed |= due
            lacking |= {module: None for module in due if module not in found}
        if len(lacking) == len(owed):
            return ""
        if not lacking:
            return "every module"
        return f"the {len(owed) - len(lacking)} of {len(owed)} modules that were compared"

    @cached_property
    def outputs(self) -> frozenset[str]:
        """The modules of which an output was compared."""
        return frozenset(self._having("activation", self._both))

    def caller(self, module: str) -> str | None:
        """The caller of a module in the reference; None if that is the program itself."""
        return callers_of(self.rung.reference).get(module)

    def _having(self, kind: str, ids: Iterable[TensorId]) -> dict[str, None]:
        return dict.fromkeys(id.module for id in ids if id.kind == kind and not is_input(id))

    @cached_property
    def _both(self) -> frozenset[TensorId]:
        dealt = Dealt(self.rung.candidate)
        return frozenset(
            id
            for id in self.rung.reference.ids()
            if self.rung.candidate.holders(id) and not is_local(id, self.local)
            if id not in dealt
        )

    @cached_property
    def _gradients(self) -> frozenset[str]:
        return frozenset(id.path for id in self._both if id.kind == "param_grad")
