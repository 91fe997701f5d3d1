"""Watches weights of a sum that a softmax makes: over which dimension they are, and the sum is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from pytest_trainsafe.compat.autograd import shape_made, softmax_dimension
from pytest_trainsafe.judges.learn.instrument.slips.inputs.criteria import is_node
from pytest_trainsafe.judges.learn.instrument.slips.moments import Moment, Watcher

#: The graphs of so many first rounds are looked at, and at most so many nodes of each.
_ROUNDS, _NODES = 2, 4096
#: The most nodes between a softmax and a product.
_BETWEEN = 6
#: Nodes that leave the last two dimensions of a tensor as they are.
_KEEPS = ("View", "ReshapeAlias", "UnsafeView", "Expand", "Clone", "Alias", "ToCopy")


class Products(Watcher):
    """Sees what backwards begin with."""

    kinds = ("backward",)

    def entered(self, moment: Moment) -> None:
        total = moment.thing
        if not moment.outermost or self.training.young >= _ROUNDS:
            return
        for node in _products(total.grad_fn if isinstance(total, torch.Tensor) else None):
            for side, (factor, _) in enumerate(node.next_functions[:2]):
                if factor is not None and self._over(factor, side):
                    return

    def _over(self, factor: Any, side: int) -> bool:
        """Whether a softmax is a factor, over another dimension than the product sums over."""
        shape = shape_made(factor, 0)
        for _ in range(_BETWEEN):
            if is_node(factor, "Softmax"):
                break
            # Dropout multiplies with a mask.
            alone = [each for each, _ in factor.next_functions if each is not None]
            if len(alone) != 1 or not is_node(factor, *_KEEPS, "Mul", "NativeDropout"):
                return False
            factor = alone[0]
        own, dim = shape_made(factor, 0), softmax_dimension(factor)
        if not is_node(factor, "Softmax") or shape is None or own is None or dim is None:
            return False
        if len(own) < 2 or own[-2:] != shape[-2:]:
            return False
        summed, found = len(own) - 1 - side, dim % len(own)
        if found == summed or own[found] == 1:
            return False
        self.training.slip(
            "softmax-not-summed",
            f"a softmax of {list(own)} is over dimension {found}, and the sum over {summed}",
        )
        return True


def _products(node: Any) -> Iterator[Any]:
    """The products of matrices behind a node."""
    waiting, seen = [node], {node}
    while waiting and len(seen) < _NODES:
        node = waiting.pop()
        if is_node(node, "Bmm", "Mm"):
            yield node
        for each, _ in node.next_functions if node is not None else ():
            if each is not None and each not in seen:
                seen.add(each)
                waiting.append(each)
