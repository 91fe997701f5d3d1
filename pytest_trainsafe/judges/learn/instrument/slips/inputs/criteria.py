"""Watches what losses get: shapes that broadcast, activations before the loss, and targets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from pytest_trainsafe.compat.autograd import constant_factor, shape_made
from pytest_trainsafe.judges.learn.instrument.slips.moments import Moment, Training, Watcher

#: The content of tensors, and the graph of a loss, are looked at in so many rounds.
_ROUNDS = 3
#: The most nodes of a graph that are looked at, and the most views behind a tensor.
_NODES, _VIEWS = 64, 8

#: Losses of two tensors that torch broadcasts against each other.
_ELEMENTWISE = ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss")
#: Nodes that leave the elements of a tensor as they are.
_MOVES = (
    *("View", "ReshapeAlias", "UnsafeView", "Transpose", "T", "Permute", "Squeeze", "Unsqueeze"),
    *("Select", "Slice", "Index", "Expand", "Alias", "Clone", "ToCopy"),
)
#: Nodes between a loss and the difference that it reduces.
_REDUCES = (
    *("Mean", "Sum", "Pow", "Abs", "Mul", "Div", "Add", "Sqrt", "Neg", "Log", "View"),
    *("Minimum", "Clamp", "Exp"),
)
#: The results that a loss should not get, since it begins with an activation of its own.
_ACTIVATED = {
    "cross_entropy": ("Softmax", "Sigmoid", "Relu"),
    "binary_cross_entropy_with_logits": ("Softmax", "Sigmoid", "Relu"),
}
#: How far a sum of probabilities may be from 1, and a target from the ends of its range.
_APART, _OUTSIDE = 0.1, 1e-3
#: The logarithm of a probability, and how many nodes behind a product it is looked for in.
_LOGARITHMS, _NEAR = ("LogSoftmax", "Logsumexp", "NllLoss"), 24
#: Targets of fewer classes may have equal shares by chance.
_CLASSES = 4
#: How far the sum of a distribution may be from 1.
_SUM = 1e-3
#: The position of the target of losses that want 1 and -1.
_SIGNS = {
    "margin_ranking_loss": 2,
    "cosine_embedding_loss": 2,
    "hinge_embedding_loss": 1,
    "soft_margin_loss": 1,
}


class Criteria(Watcher):
    """Sees losses of torch, and the tensors that backwards begin with."""

    kinds = ("loss", "backward")

    def __init__(self, training: Training) -> None:
        super().__init__(training)
        #: The nodes of divergences that are not reduced yet, and their shapes without the classes.
        self._pointwise: dict[Any, tuple[int, ...]] = {}

    def entered(self, moment: Moment) -> None:
        if not torch.is_grad_enabled():
            return
        if moment.kind == "backward":
            if moment.outermost and self.training.young < _ROUNDS:
                total = _total(moment)
                self._graph(total)
                self._advantage(total)
                self._averages(total)
            if moment.outermost:
                self._pointwise.clear()
            return
        name = moment.api.rpartition(".")[2]
        given, target = moment.argument(0, "input"), moment.argument(1, "target")
        if name in _SIGNS:
            self._signs(name, moment.argument(_SIGNS[name], "target"))
        elif isinstance(given, torch.Tensor) and isinstance(target, torch.Tensor):
            if name in _ELEMENTWISE:
                self._shapes(name, given, target)
            elif given.requires_grad:
                self._activation(name, given)
                if name == "cross_entropy" and given.dim() > 1 and given.shape[1] == 1:
                    self.training.slip("softmax-of-one", f"{name} of shape {_text(given.shape)}")
                if name == "cross_entropy" and moment.argument(7, "label_smoothing", 0.0):
                    self._smoothed(target.detach())
                if self.training.young < _ROUNDS:
                    self._content(name, given, target, moment)

    def left(self, moment: Moment) -> None:
        if not moment.api.endswith(".kl_div") or moment.failed or not torch.is_grad_enabled():
            return
        target, result = moment.argument(1, "target"), moment.result
        if self.training.young >= _ROUNDS or not isinstance(result, torch.Tensor):
            return
        over = _classes(target, bool(moment.argument(5, "log_target", False)))
        if over is None or not result.requires_grad:
            return
        reduction = moment.argument(4, "reduction", "mean")
        if reduction == "mean" and moment.argument(2, "size_average") is None:
            self.training.slip("divergence-averaged", f"over {target.shape[over]} classes")
        elif reduction == "none" and result.grad_fn is not None and len(self._pointwise) < _NODES:
            shape = (*result.shape[:over], *result.shape[over + 1 :])
            self._pointwise[result.grad_fn] = shape

    def _averages(self, total: torch.Tensor | None) -> None:
        """Whether the mean of a divergence over its classes is a part of the loss."""
        for node in _scalars(total) if self._pointwise else ():
            for part, _ in node.next_functions:
                inner = [part, *(each for each, _ in part.next_functions)] if part else []
                for mean in (node, *inner):
                    below = mean.next_functions[0][0] if is_node(mean, "Mean") else None
                    shape = self._pointwise.get(below)
                    if shape is not None and shape_made(mean, 0) in ((), shape):
                        self.training.slip("divergence-averaged", "the mean is over its classes")
                        return

    def _advantage(self, total: torch.Tensor | None) -> None:
        """Whether a logarithm of a probability is multiplied with a difference to a prediction."""
        for node in _scalars(total):
            for product, _ in node.next_functions:
                while is_node(product, "Neg", "Minimum", "Mul") and product is not None:
                    branches = [each for each, _ in product.next_functions if each is not None]
                    if is_node(product, "Mul") and len(branches) == 2:
                        for one, other in (branches, branches[::-1]):
                            if _reaches(one, *_LOGARITHMS) and _is_advantage(other):
                                self.training.slip(
                                    "advantage-graded", "the difference has a gradient"
                                )
                                return
                    product = branches[0] if branches else None

    def _shapes(self, name: str, given: torch.Tensor, target: torch.Tensor) -> None:
        if given.shape == target.shape or not (given.requires_grad or target.requires_grad):
            return
        both: torch.Size = torch.broadcast_shapes(  # type: ignore[no-untyped-call]
            given.shape, target.shape
        )
        if both != given.shape and both != target.shape:
            shapes = f"{_text(given.shape)} and {_text(target.shape)}"
            self.training.slip("loss-broadcast", f"{name} of {shapes} is one of {_text(both)}")

    def _activation(self, name: str, given: torch.Tensor) -> None:
        node = origin(given)
        for activation in _ACTIVATED.get(name, ()):
            if is_node(node, activation):
                self.training.slip("loss-activated", f"{name} of the result of {activation}")

    def _content(
        self, name: str, given: torch.Tensor, target: torch.Tensor, moment: Moment
    ) -> None:
        """Whether logarithms and probabilities are what they have to be."""
        values = given.detach()
        if name == "nll_loss" and values.dim() > 1:
            sums = values.exp().sum(1)
            if bool(((sums - 1).abs() > _APART).all()):
                self.training.slip(
                    "loss-activated", "nll_loss of values that are no logarithms of probabilities"
                )
        elif name == "ctc_loss":
            if bool(((values.exp().sum(-1) - 1).abs() > _APART).all()):
                self.training.slip(
                    "loss-activated", "ctc_loss of values that are no logarithms of probabilities"
                )
        elif name == "kl_div" and not moment.argument(5, "log_target", False):
            probabilities = bool((values >= 0).all()) and bool((values > 0).any())
            if probabilities or bool((target.detach() < -_OUTSIDE).any()):
                self.training.slip(
                    "loss-activated",
                    f"kl_div of {'probabilities' * probabilities or 'logarithms as a target'}",
                )
        elif name == "binary_cross_entropy_with_logits":
            low, high = (float(each) for each in target.detach().aminmax())
            if low < -_OUTSIDE or high > 1 + _OUTSIDE:
                self.training.slip("target-outside", f"{name} of targets from {low} to {high}")

    def _smoothed(self, target: torch.Tensor) -> None:
        """Whether targets to smooth are smooth: all classes but one have the same share."""
        if not target.is_floating_point() or target.dim() != 2 or target.shape[1] < _CLASSES:
            return
        least = target.amin(1, keepdim=True)
        others = (target - least).abs() <= _OUTSIDE * least
        if bool((least > 0).all()) and bool((others.sum(1) == target.shape[1] - 1).all()):
            self.training.slip("smoothed-twice", f"the least share is {float(least.min()):.3g}")

    def _signs(self, name: str, target: object) -> None:
        if not isinstance(target, torch.Tensor) or self.training.young >= _ROUNDS:
            return
        if not bool((target.detach().abs() == 1).all()):
            self.training.slip("target-outside", f"{name} of a target that is not 1 or -1")

    def _graph(self, total: torch.Tensor | None) -> None:
        """Whether a difference or product below a loss's reductions has as many columns as rows.

        A prediction of shape [N, 1] minus a target of shape [N] is of shape [N, N].  So is the
        logarithm of a probability, if it is multiplied with an advantage of shape [N].
        """
        for node in _differences(total):
            branches = [each for each in node.next_functions if each[0] is not None]
            made = shape_made(node, 0)
            if len(branches) != 1 or made is None or len(made) != 2 or made[0] != made[1]:
                continue
            before, output = branches[0]
            shape, rows = shape_made(before, output), made[0]
            if rows < 2 or shape not in ((rows,), (rows, 1)) or is_node(before, "Unsqueeze"):
                continue
            factor = constant_factor(node) if is_node(node, "Mul") else None
            if is_node(node, "Mul") and (factor is None or factor.numel() != rows):
                continue  # a mask of [N, N] is meant to be so
            what = "difference" if factor is None else "product"
            self.training.slip(
                "loss-broadcast", f"a {what} of {_text(shape)} is one of {_text(made)}"
            )
            return


def _classes(target: object, logarithms: bool) -> int | None:
    """The dimension over which a target is a distribution; None if there is none."""
    if not isinstance(target, torch.Tensor) or target.dim() < 2 or target.requires_grad:
        return None
    values = target.detach().exp() if logarithms else target.detach()
    for dim in (target.dim() - 1, 1):
        if target.shape[dim] > 1 and bool(((values.sum(dim) - 1).abs() < _SUM).all()):
            return dim
    return None


def _scalars(total: torch.Tensor | None) -> Iterator[Any]:
    """The nodes of a loss that make one number, of which the last ones reduce a tensor."""
    waiting: list[Any] = [total.grad_fn] if total is not None and total.numel() == 1 else []
    seen = 0
    while waiting and seen < _NODES:
        node = waiting.pop()
        if node is None or shape_made(node, 0) not in ((), (1,)):
            continue
        seen += 1
        yield node
        waiting += [each for each, _ in node.next_functions]


def _reaches(node: Any, *operators: str) -> bool:
    """Whether one of these operators is among the next nodes behind a node."""
    waiting, seen = [node], 0
    while waiting and seen < _NEAR:
        node = waiting.pop(0)
        seen += 1
        if is_node(node, *operators):
            return True
        waiting += [each for each, _ in node.next_functions if each is not None]
    return False


def _is_advantage(node: Any) -> bool:
    """Whether a node makes the difference of a constant and a prediction, and no logarithm."""
    for _ in range(_VIEWS):
        if not is_node(node, *_MOVES, "Neg", "Div"):
            break
        node = node.next_functions[0][0]
    if not is_node(node, "Sub", "Rsub") or _reaches(node, *_LOGARITHMS, "Softmax"):
        return False
    parts = [each for each, _ in node.next_functions]
    return len(parts) == 1 or (len(parts) == 2 and parts.count(None) == 1)


def _total(moment: Moment) -> torch.Tensor | None:
    """The loss that a backward begins with; None if there are several."""
    if isinstance(moment.thing, torch.Tensor):
        return moment.thing
    given = moment.argument(0, "tensors")
    if isinstance(given, list | tuple) and len(given) == 1:
        given = given[0]
    return given if isinstance(given, torch.Tensor) else None


def _differences(total: torch.Tensor | None) -> Iterator[Any]:
    waiting: list[Any] = [total.grad_fn] if total is not None and total.numel() == 1 else []
    seen = 0
    while waiting and seen < _NODES:
        node = waiting.pop()
        seen += 1
        if is_node(node, "Sub", "Rsub", "Mul"):
            yield node
        if is_node(node, *_REDUCES):
            waiting += [each for each, _ in node.next_functions if each is not None]


def origin(tensor: torch.Tensor) -> object:
    """The node that made the elements of a tensor, behind its views."""
    node: Any = tensor.grad_fn
    for _ in range(_VIEWS):
        if not is_node(node, *_MOVES):
            break
        node = node.next_functions[0][0]
    return node


def is_node(node: object, *operators: str) -> bool:
    """Whether a node of the graph differentiates one of these operators."""
    name = type(node).__name__.partition("Backward")[0]
    return name in operators


def _text(shape: torch.Size | tuple[int, ...]) -> str:
    return str(list(shape))
