"""A relation: the steps by which tensors of the ranks become one sequential tensor.

The text of a relation has its steps, the outermost first, and the ranks' tensors:

    replica of loss                       every rank holds it
    concat 0 over tp of mm_5              the ranks of tp hold parts of dimension 0, in their order
    concat 0 over cp zigzag of x          each rank of cp holds a part, and one as far from the end
    sum over dp, concat 1 over tp of t    partial sums over dp of what is cut over tp
    concat 0 of x_1, x_2                  every rank holds micro-batches, one in each tensor
    all over tp of outside                a mask that is true where those of all ranks of tp are
    at pp=1 of logits                     the ranks whose coordinate of pp is 1 hold it

No step multiplies: a relation that needs a scale is not clean (GraphGuard, section 4).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["concat", "sum", "all", "at", "slice", "permute"]

#: A part of each rank's tensor: its size, and how many neighbouring ranks hold the same.
Part = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Step:
    """One way to make one tensor of several, or of one.

    `axis` is the mesh axis whose ranks are joined; "" joins the named tensors of each rank, and
    the kinds "slice" and "permute" join nothing.
    `dim` is the dimension of a concat or slice.  With `by` above 1, the dimension is `by` blocks,
    each of which is cut over the ranks, as the flattened (batch, heads) is if heads are cut.
    With `zigzag`, these are 2 blocks, of which the ranks hold the second in reverse order.
    `order` says which rank holds the first part, which the second.  With `parts`, a rank's tensor
    consists of these parts, and the sequential one has first all ranks' first parts, then their
    second parts.  `numbers` are the coordinate of "at", the bounds of a slice, or the dimensions
    of a permutation.
    """

    kind: Kind
    axis: str = ""
    dim: int = 0
    by: int = 1
    order: tuple[int, ...] = ()
    parts: tuple[Part, ...] = ()
    numbers: tuple[int, ...] = ()
    zigzag: bool = False

    def __str__(self) -> str:
        if self.kind == "at":
            return f"at {self.axis}={self.numbers[0]}"
        if self.kind == "slice":
            return f"slice {self.dim} {self.numbers[0]}:{self.numbers[1]}"
        if self.kind == "permute":
            return f"permute {' '.join(map(str, self.numbers))}"
        text = f"concat {self.dim}" if self.kind == "concat" else self.kind
        if self.axis:
            text += f" over {self.axis}"
        if self.zigzag:
            text += " zigzag"
        elif self.by > 1:
            text += f" by {self.by}"
        if self.order:
            text += f" order {' '.join(map(str, self.order))}"
        if self.parts:
            sizes = (f"{size}x{copies}" if copies > 1 else str(size) for size, copies in self.parts)
            text += f" parts {'+'.join(sizes)}"
        return text


@dataclass(frozen=True, slots=True)
class Relation:
    """Steps, the outermost first, applied to the tensors with these names on each rank.

    What no step joins is a replica: all ranks hold the same.
    """

    steps: tuple[Step, ...]
    names: tuple[str, ...]

    @property
    def partial(self) -> bool:
        """Whether some rank holds only a term of a reduction that has still to be made."""
        return any(step.kind in ("sum", "all") for step in self.steps)

    @property
    def summed(self) -> bool:
        """Whether the ranks hold terms of a sum."""
        return any(step.kind == "sum" for step in self.steps)

    @property
    def invertible(self) -> bool:
        """Whether it says what each rank holds of the sequential tensor, or of terms of it."""
        return all(step.kind in ("concat", "sum", "at", "permute") for step in self.steps)

    def __str__(self) -> str:
        steps = ", ".join(map(str, self.steps)) or "replica"
        return f"{steps} of {', '.join(self.names)}"


def preference(relation: Relation, name: str) -> tuple[object, ...]:
    """The place of a relation among those that hold: the first is the one that is shown.

    Whole tensors come before parts, and parts before terms of a sum; then fewer steps, the order
    of the ranks, and the name of the sequential tensor.
    """
    kinds = [step.kind for step in relation.steps]
    return (
        relation.partial,
        len(relation.names),
        len(kinds),
        any(step.order or step.by > 1 for step in relation.steps),
        "at" in kinds,
        relation.names != (name,),
        str(relation),
    )
