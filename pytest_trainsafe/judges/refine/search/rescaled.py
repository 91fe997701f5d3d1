"""Where a sequential tensor is a multiple of the ranks', and is multiplied by a constant later."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import torch

from pytest_trainsafe.arithmetic import field, rational
from pytest_trainsafe.judges.refine.graphs.graph import Graph, Node
from pytest_trainsafe.judges.refine.search.content import multiple


def rescaled(
    graph: Graph, values: Mapping[str, object], related: Collection[str], node: Node
) -> Node:
    """The last multiplication by a constant behind `node`, or `node` if there is none.

    The ranks may scale elsewhere, as a mean does what a sum and a division do: only the product
    says whether the factor is wrong.
    """
    last = current = node
    while True:
        users = [each for each in graph.nodes if current.name in each.inputs]
        if len(users) != 1 or users[0].name in related:
            return last
        factor = _factor(values.get(current.name), values.get(users[0].name))
        if factor is None:
            return last
        (current,) = users
        last = last if factor == 1 else current


def _factor(x: object, y: object) -> object:
    """The rational number by which `x` is multiplied to be `y`, in the same order, or None."""
    if not isinstance(x, torch.Tensor) or not isinstance(y, torch.Tensor):
        return None
    mine, other = multiple(x), multiple(y)
    if mine is None or other is None or mine[0] != other[0]:
        return None
    return rational(field.multiply(other[1], field.inverse(mine[1])))
