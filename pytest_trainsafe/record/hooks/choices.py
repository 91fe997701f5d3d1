"""Choices inside a module's forward, such as those of a router that returns a map of experts.

A module annotated `decision: topk` calls torch.topk or argmax and computes its output from the
result.  During its forward these calls are intercepted: the choices are recorded with their
scores, and in a Run that replays another Run they return that Run's choices, with this rank's own
scores for them.  So everything that the module computes from a choice is consistent with it, and
gradients flow as usual.

Used by the recorder of activations.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from pytest_trainsafe.compat.operators import TensorBase, functions_in_c
from pytest_trainsafe.record.clock import ProgramError
from pytest_trainsafe.record.layouts.dtensor import is_dtensor
from pytest_trainsafe.record.lines.replaced import called

#: Maps the scores [..., options], the chosen indices [..., k] and the number of earlier choices in
#: this call to the indices to use.
Decide = Callable[[torch.Tensor, torch.Tensor, int], torch.Tensor]

# What `called` returns, which no replacement by the program changes.
_TOPK = frozenset({functions_in_c.topk, TensorBase.topk})
_ARGMAX = frozenset({functions_in_c.argmax, TensorBase.argmax})
_MAX = frozenset({functions_in_c.max, TensorBase.max})


class Chooser:
    """Intercepts the choices in the forward of one module.

    `begin_call` is called when a forward begins; it returns the function that decides in that call,
    or None for a call that is not recorded.
    """

    def __init__(
        self, module: nn.Module, name: str, begin_call: Callable[[], Decide | None]
    ) -> None:
        self._module = module
        self._name = name
        self._begin_call = begin_call
        self._running: list[_Calls | None] = []

    def enter(self, module: nn.Module, args: object, kwargs: object) -> None:
        """Starts intercepting choices.  This is the hook before the module's forward."""
        if module is not self._module:
            return  # a deep copy of the module shares its hooks
        decide = self._begin_call()
        calls = _Calls(decide) if decide is not None else None
        self._running.append(calls)
        if calls is not None:
            calls.__enter__()  # type: ignore[no-untyped-call]

    def leave(self, module: nn.Module, args: object, kwargs: object, output: object) -> None:
        """Stops intercepting choices.  This is the hook after the forward, even if that raised.

        Raises ProgramError if the forward returned and made no choice.
        """
        calls = self._running.pop() if module is self._module and self._running else None
        if calls is None:
            return
        calls.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        if not calls.count and output is not None:
            raise ProgramError(
                f"{self._name} is annotated `decision: topk`, but its forward called neither "
                "torch.topk nor argmax over the last dimension of floating-point scores; annotate "
                "the module that makes the choice, or remove the annotation"
            )


class _Calls(TorchFunctionMode):
    """Intercepts calls of topk, argmax and max that choose; `decide` may replace their results."""

    def __init__(self, decide: Decide) -> None:
        super().__init__()
        self.decide = decide
        self.count = 0

    def __torch_function__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        func = called(func, sys._getframe(1))
        result = func(*args, **kwargs)
        if func in _TOPK:
            scores, largest = (
                _argument(args, kwargs, 0, "input"),
                _argument(args, kwargs, 3, "largest"),
            )
            if _chooses(scores, _argument(args, kwargs, 2, "dim", -1), kwargs):
                ranked = scores if largest in (None, True) else -scores
                return self._replaced(result, scores, ranked)
        elif func in _ARGMAX or func in _MAX:
            scores = _argument(args, kwargs, 0, "input")
            if _chooses(scores, _argument(args, kwargs, 1, "dim"), kwargs):
                keeps = bool(_argument(args, kwargs, 2, "keepdim", False))
                return self._best(result, scores, keeps)
        return result

    def _replaced(self, result: Any, scores: torch.Tensor, ranked: torch.Tensor) -> Any:
        chosen = self._decided(ranked, result.indices)
        if chosen is result.indices:
            return result
        return type(result)((scores.gather(-1, chosen), chosen))

    def _best(self, result: Any, scores: torch.Tensor, keeps: bool) -> Any:
        own = result if isinstance(result, torch.Tensor) else result.indices
        column = own if keeps else own.unsqueeze(-1)
        chosen = self._decided(scores, column)
        if chosen is column:
            return result
        found = chosen if keeps else chosen.squeeze(-1)
        if isinstance(result, torch.Tensor):
            return found
        values = scores.gather(-1, chosen)
        return type(result)((values if keeps else values.squeeze(-1), found))

    def _decided(self, scores: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        self.count += 1
        return self.decide(scores, chosen, self.count - 1)


def _argument(
    args: Sequence[Any], kwargs: Mapping[str, Any], place: int, name: str, default: Any = None
) -> Any:
    if len(args) > place:
        return args[place]
    return kwargs.get(name, kwargs.get("self", default) if place == 0 else default)


def _chooses(scores: Any, dim: Any, kwargs: Mapping[str, Any]) -> bool:
    """Whether a call chooses among the options in the last dimension of floating-point scores."""
    return (
        isinstance(scores, torch.Tensor)
        and not is_dtensor(scores)
        and scores.is_floating_point()
        and scores.ndim > 0
        and isinstance(dim, int)
        and not isinstance(dim, bool)
        and dim % scores.ndim == scores.ndim - 1
        and kwargs.get("out") is None
    )
