"""Watches what the first layers get, and whether targets are where predictions can be."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from pytest_trainsafe.compat.autograd import shape_made, softmax_dimension
from pytest_trainsafe.judges.learn.instrument.slips.data import tensors_in
from pytest_trainsafe.judges.learn.instrument.slips.inputs.criteria import is_node, origin
from pytest_trainsafe.judges.learn.instrument.slips.moments import Moment, Watcher

#: Losses, inputs and batches are looked at in so many rounds.
_ROUNDS = 3
#: The share of targets that no prediction can reach, and by how much they are outside.
_SHARE, _OUTSIDE = 0.05, 0.05
#: The range of results of an activation.
_RANGES = {
    "Sigmoid": (0.0, 1.0),
    "Softmax": (0.0, 1.0),
    "Tanh": (-1.0, 1.0),
    "Relu": (0.0, float("inf")),
    "Softplus": (0.0, float("inf")),
    "Exp": (0.0, float("inf")),
}
#: Losses whose prediction is compared with a target of the same kind.
_DIFFERENCES = ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy")
#: Losses of classes.
_OF_CLASSES = ("cross_entropy", "nll_loss", "kl_div")
#: Pixels are between 0 and 255, and some are more than this.
_BRIGHT, _WHITE = 64, 255
#: How exactly a number is whole, and how many of them are no chance.
_WHOLE, _SEVERAL = 0.05, 8
#: Layers of fewer inputs may get counts.
_PIXELS = 256
#: Images of so many channels are looked at, and how much more alike the pixels of a channel are.
_COLOURS, _SMOOTHER = (3, 4), 0.75
#: Examples of fewer elements may be equal by chance.
_ELEMENTS, _EXAMPLES = 16, 4


class Reach(Watcher):
    """Sees losses, layers, and batches of loaders."""

    kinds = ("loss", "module", "next")

    def entered(self, moment: Moment) -> None:
        if self.training.young >= _ROUNDS or not torch.is_grad_enabled():
            return
        if moment.kind == "module":
            if isinstance(moment.thing, nn.Conv2d | nn.Linear):
                self._pixels(moment.thing, moment.argument(0, "input"))
        elif moment.kind == "loss":
            self._loss(moment)

    def left(self, moment: Moment) -> None:
        if moment.kind != "next" or moment.failed or self.training.young >= _ROUNDS:
            return
        first = next(iter(tensors_in(moment.result)), None)
        if first is None or first.dim() < 2 or first.shape[0] < _EXAMPLES:
            return
        wide = first.is_floating_point() and first[0].numel() >= _ELEMENTS
        if wide and bool((first[1:] == first[:1]).all()) and bool((first[0] != 0).any()):
            self.training.slip("rows-alike", f"all {first.shape[0]} examples of a batch are equal")

    def _pixels(self, layer: nn.Module, given: object) -> None:
        if not isinstance(given, torch.Tensor) or given.requires_grad or not given.numel():
            return
        wide = given.dim() == 4 if isinstance(layer, nn.Conv2d) else given.shape[-1] >= _PIXELS
        if not wide or not given.is_floating_point():
            return
        if isinstance(layer, nn.Conv2d):
            self._channels(given)
        low, high = (float(each) for each in given.aminmax())
        twice = given.double() * _WHITE**2
        if low >= 0 and 0 < high <= 1.01 / _WHITE and _are_whole(twice):
            self.training.slip(
                "pixels-twice", f"{type(layer).__name__} gets no more than {high:.2g}"
            )
        if low >= 0 and _BRIGHT < high <= _WHITE and bool((given == given.round()).all()):
            self.training.slip(
                "pixels-unscaled", f"{type(layer).__name__} gets whole numbers up to {high:.0f}"
            )

    def _channels(self, given: torch.Tensor) -> None:
        """Whether neighbours are the channels of one pixel: images were reshaped, not permuted."""
        channels, width = given.shape[1], given.shape[3]
        if channels not in _COLOURS or width < 3 * channels or given[0].numel() < _PIXELS:
            return
        flat = given.detach().flatten(1).double()
        apart = [
            float((flat[:, lag:] - flat[:, :-lag]).square().mean())
            for lag in (1, channels - 1, channels, channels + 1)
        ]
        if apart[2] < _SMOOTHER * min(apart[0], apart[1], apart[3]):
            self.training.slip(
                "channels-mixed", f"elements that are {channels} apart are the most alike"
            )

    def _loss(self, moment: Moment) -> None:
        name = moment.api.rpartition(".")[2]
        if name == "ctc_loss":
            self._blank(moment)
        given, target = moment.argument(0, "input"), moment.argument(1, "target")
        if not isinstance(given, torch.Tensor) or not isinstance(target, torch.Tensor):
            return
        node = origin(given)
        if name in (*_DIFFERENCES, *_OF_CLASSES):
            self._softmax(name, node)
        if name in _DIFFERENCES:
            self._range(name, node, target.detach())

    def _softmax(self, name: str, node: Any) -> None:
        if not is_node(node, "Softmax", "LogSoftmax"):
            return
        shape, dim = shape_made(node, 0), softmax_dimension(node)
        if shape is None or dim is None or not -len(shape) <= dim < len(shape):
            return
        if shape[dim] == 1:
            self.training.slip("softmax-of-one", f"{name} of a softmax of shape {list(shape)}")
        elif dim == 0 and len(shape) == 2 and 1 < shape[1] != shape[0]:
            self.training.slip(
                "softmax-over-batch", f"{name} of a softmax of {list(shape)} over dimension 0"
            )

    def _range(self, name: str, node: object, target: torch.Tensor) -> None:
        for activation, (low, high) in _RANGES.items():
            if is_node(node, activation) and target.numel():
                outside = (target < low - _OUTSIDE) | (target > high + _OUTSIDE)
                count = int(outside.sum())
                if count > _SHARE * target.numel():
                    self.training.slip(
                        "target-out-of-reach",
                        f"{name}: {count} of {target.numel()} targets, of the result of "
                        f"{activation}",
                    )
                return

    def _blank(self, moment: Moment) -> None:
        targets, lengths = moment.argument(1, "targets"), moment.argument(3, "target_lengths")
        if not isinstance(targets, torch.Tensor):
            return
        blank = moment.argument(4, "blank", 0)
        counted = targets.detach() == blank
        if targets.dim() == 2:
            ends = torch.as_tensor(lengths, device=targets.device).reshape(-1, 1)
            counted = counted & (torch.arange(targets.shape[1], device=targets.device) < ends)
        if bool(counted.any()):
            self.training.slip("blank-labelled", f"{int(counted.sum())} labels are {blank}")


def _are_whole(values: torch.Tensor) -> bool:
    """Whether numbers are whole, of which there are several."""
    whole = values.round()
    return bool(((values - whole).abs() < _WHOLE).all()) and torch.unique(whole).numel() > _SEVERAL
