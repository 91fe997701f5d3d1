"""Watches what depends on what: logits on later tokens, results on other examples, on padding.

Autograd is asked for the gradient of a part of a result by that of the first layer, in the first
rounds only.  No gradient of the program changes by the question.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, default_collate

from pytest_trainsafe.compat.autograd import inside_transform
from pytest_trainsafe.compat.compiler import compiles
from pytest_trainsafe.compat.modules import has_backward_hooks, is_batch_norm
from pytest_trainsafe.judges.learn.instrument.slips.data import tensors_in
from pytest_trainsafe.judges.learn.instrument.slips.models import things_in
from pytest_trainsafe.judges.learn.instrument.slips.moments import Moment, Training, Watcher
from pytest_trainsafe.judges.learn.instrument.slips.steps.graph import has_functions
from pytest_trainsafe.record.clock import in_backward

#: Dependences are looked at in so many rounds, those on padding in the first of them.
_ROUNDS, _FIRST = 4, 2
#: The most embeddings that are remembered until a backward.
_MANY = 16
#: A batch of fewer examples says little, and fewer padded texts may be so by chance.
_EXAMPLES, _TEXTS = 4, 2
#: A gradient that is smaller than the largest by this is rounding.
_LEAST = 1e-5
#: Layers that treat each example alone.
_LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


@dataclass(slots=True)
class _Text:
    """What an embedding got and gave, and the index of its padding."""

    tokens: torch.Tensor
    result: torch.Tensor
    padding: int | None


@dataclass(slots=True)
class _Run:
    """A forward of a model: the tensors that it got, the result of its first layer, and its own.

    `loaded` says that a loader has put the examples together along the first dimension, and
    `labels` how many labels each loss had that got a label for each example.
    """

    model: nn.Module
    given: list[torch.Tensor]
    loaded: bool
    layer: torch.Tensor | None = None
    result: torch.Tensor | None = None
    losses: int = 0
    labels: int = 0


@dataclass(slots=True)
class _Loaded:
    """The loaders of iterators, and the memory of the last batch that one of them gave."""

    of: WeakKeyDictionary[Any, DataLoader[Any]] = field(default_factory=WeakKeyDictionary)
    places: set[int] = field(default_factory=set)


class Influence(Watcher):
    """Sees batches, models and embeddings that run, losses, and the backwards that use them."""

    kinds = ("iter", "next", "module", "embedded", "checkpoint", "loss", "backward")

    def __init__(self, training: Training) -> None:
        super().__init__(training)
        self._texts: list[_Text] = []
        #: The forward that runs, and the last that has run.
        self._run: _Run | None = None
        self._done: _Run | None = None
        self._loaded = _Loaded()
        #: A hash of what each model has got in a round before.
        self._before: WeakKeyDictionary[nn.Module, int] = WeakKeyDictionary()
        self._recomputes = False

    def sees_later(
        self, tokens: torch.Tensor, logits: torch.Tensor, target: torch.Tensor
    ) -> bool | None:
        """Whether the logits of first positions depend on later tokens; None if it is not known.

        It is by each of the embeddings of these tokens: an encoder may read them too.
        """
        first = _first_position(logits, target, len(tokens))
        if first is None or not self._may_ask():
            return None
        if any(_mixes(model) for _, model in self.training.models()):
            return None
        found = []
        for text in self._texts:
            gradient = _gradient(first, text.result) if text.tokens is tokens else None
            if gradient is not None and bool(gradient.any()):
                sizes = gradient.flatten(2).amax((0, 2))
                found.append(bool(sizes[1:].max() > _LEAST * sizes.max()))
        return all(found) if found else None

    def entered(self, moment: Moment) -> None:
        if self.training.young >= _ROUNDS:
            self._texts, self._run, self._done = [], None, None
        elif moment.kind == "backward":
            if moment.outermost:
                if isinstance(moment.thing, torch.Tensor) and moment.thing.requires_grad:
                    self._reads_padding(moment.thing)
                self._crosses()
                self._texts, self._recomputes = [], False
        elif moment.kind == "checkpoint":
            self._recomputes = True
        elif moment.kind == "loss":
            self._labelled(moment)
        elif moment.kind == "module" and moment.outermost:
            self._begins(moment)

    def left(self, moment: Moment) -> None:
        if self.training.young >= _ROUNDS or moment.failed:
            return
        if moment.kind == "iter":
            self._loaded.of[moment.result] = moment.thing
        elif moment.kind == "next":
            loader = self._loaded.of.get(moment.thing)
            plain = loader is not None and loader.collate_fn is default_collate
            batch = tensors_in(moment.result) if plain and loader is not None else []
            size = loader.batch_size if loader is not None else None
            whole = bool(batch) and all(each.dim() and len(each) == size for each in batch)
            self._loaded.places = {each.data_ptr() for each in batch} if whole else set()
        elif in_backward() or not torch.is_grad_enabled():
            return
        elif moment.kind == "embedded":
            self._embeds(moment)
        elif moment.kind == "module":
            self._ends(moment)

    def _begins(self, moment: Moment) -> None:
        self._run = None
        given = tensors_in([*moment.args, *moment.kwargs.values()])
        graded = torch.is_grad_enabled() and moment.thing.training and not in_backward()
        if not graded or not given or given[0].dim() < 2 or len(given[0]) < _EXAMPLES:
            return
        if not any(each.requires_grad for each in given):
            loaded = given[0].data_ptr() in self._loaded.places
            self._run = _Run(moment.thing, given, loaded)

    def _embeds(self, moment: Moment) -> None:
        tokens, result = moment.argument(0, "input"), moment.result
        if not isinstance(tokens, torch.Tensor) or not isinstance(result, torch.Tensor):
            return
        if tokens.dim() == 2 and result.requires_grad:
            text = _Text(tokens, result, moment.argument(2, "padding_idx"))
            self._texts = [*self._texts[1 - _MANY :], text]
            self._first_layer(tokens, result)

    def _ends(self, moment: Moment) -> None:
        if moment.outermost:
            run, self._run = self._run, None
            results = [each for each in tensors_in(moment.result) if each.requires_grad]
            if run is not None and run.model is moment.thing and results:
                run.result, self._done = results[0], run
        elif isinstance(moment.thing, _LAYERS):
            self._first_layer(moment.argument(0, "input"), moment.result)

    def _first_layer(self, given: object, result: object) -> None:
        run = self._run
        if run is None or run.layer is not None:
            return
        if not isinstance(given, torch.Tensor) or not isinstance(result, torch.Tensor):
            return
        if not given.requires_grad and len(given) == len(run.given[0]) and result.requires_grad:
            run.layer = result

    def _labelled(self, moment: Moment) -> None:
        run, target = self._done, moment.argument(1, "target")
        if run is None or not torch.is_grad_enabled():
            return
        run.losses += 1
        if isinstance(target, torch.Tensor) and target.dim() and len(target) == len(run.given[0]):
            run.labels = target.numel()

    def _may_ask(self) -> bool:
        """Whether a question to autograd has no effect: no hooks, no ranks, no recomputation."""
        if self._recomputes or inside_transform() or compiles() or in_backward():
            return False
        if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
            return False
        models = [model for _, model in self.training.models()]
        return not any(has_backward_hooks(each) for model in models for each in model.modules())

    def _reads_padding(self, total: torch.Tensor) -> None:
        """Whether a loss depends on the padding of texts, and on no other token of them."""
        for text in self._texts:
            if text.padding is None or self.training.young >= _FIRST:
                continue
            pads = text.tokens == text.padding
            both = pads.any(1) & ~pads.all(1)
            if int(both.sum()) < _TEXTS or not self._may_ask():
                continue
            gradient = _gradient(total, text.result)
            if gradient is None:
                continue
            sizes, hidden = gradient.amax(-1)[both], pads[both]
            if bool(sizes[hidden].any()) and not bool(sizes[~hidden].any()):
                self.training.slip(
                    "padding-attended", f"the loss depends on the padding of {len(sizes)} texts"
                )
                return

    def _crosses(self) -> None:
        """Whether the result for one example depends on others, once a second batch has come."""
        run, self._done = self._done, None
        if run is None or run.result is None or run.layer is None:
            return
        first, result, layer = run.given[0], run.result, run.layer
        digest = self.training.digest(first, False)
        before, self._before[run.model] = self._before.get(run.model), digest
        count = len(first)
        # A label for each sequence says that the first dimension is not that of the positions.
        whole = first.dim() > 2 or not first.is_floating_point()
        labelled = run.losses == 1 and run.labels == count and whole
        if before in (None, digest) or not (labelled or run.loaded) or layer is result:
            return
        if (
            not result.dim()
            or len(result) != count
            or count in (*first.shape[1:], *result.shape[1:])
        ):
            return
        if any(
            not each.dim() or each.shape[0] != count or count in each.shape[1:]
            for each in run.given[1:]
        ):
            return
        held = (*run.model.parameters(), *run.model.buffers())
        if any(count in each.shape for each in held) or _mixes(run.model) or not self._may_ask():
            return
        if any(_has_tensors(each) for each in run.model.modules()):
            return  # such as the edges of a graph
        row = count // 2
        gradient = _gradient(result[row], layer)
        if gradient is None:
            return
        sizes = gradient.flatten(1).amax(1)
        most = float(sizes.max())
        sizes[row] = 0
        if float(sizes.max()) > _LEAST * most:
            others = int((sizes > _LEAST * most).sum())
            self.training.slip(
                "examples-mixed",
                f"the result of {type(run.model).__name__} for one of {count} examples depends on "
                f"{others} others",
            )


def _first_position(logits: torch.Tensor, target: torch.Tensor, rows: int) -> torch.Tensor | None:
    """The logits of the first label of each text; None if their order is not known."""
    length = target.numel() // rows
    if not logits.requires_grad or not length:
        return None
    if logits.dim() == 2 and len(logits) == rows * length:
        return logits.reshape(rows, length, -1)[:, 0]
    if logits.dim() == 3 and len(logits) == rows and logits.shape[2] == length:
        return logits[:, :, 0]
    return None


def _has_tensors(module: nn.Module) -> bool:
    """Whether a module has tensors that are no parameters and no buffers."""
    own = {id(each) for each in (*module.parameters(False), *module.buffers(False))}
    return any(
        isinstance(each, torch.Tensor) and id(each) not in own
        for value in vars(module).values()
        for each in things_in(value)
    )


def _mixes(model: nn.Module) -> bool:
    """Whether a model takes statistics over its batch."""
    return any(is_batch_norm(each) and each.training for each in model.modules())


def _gradient(part: torch.Tensor, by: torch.Tensor) -> torch.Tensor | None:
    """The sizes of the derivatives of a part by a tensor; None if it does not depend on it.

    None too if a function in Python computes one of them: the program's own code would run.
    Elements have different weights, so that they do not cancel out where their sum is fixed.
    """
    if has_functions(part):
        return None
    with torch.enable_grad():
        weights = torch.arange(part.numel(), device=part.device).remainder(7).add(1)
        total = (part * weights.view(part.shape).to(part.dtype)).sum()
        found: Any = torch.autograd.grad(total, by, retain_graph=True, allow_unused=True)[0]
    return None if found is None else found.abs()
