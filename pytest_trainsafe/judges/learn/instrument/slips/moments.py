"""What a watcher of slips sees of a patched call."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from pytest_trainsafe.judges.learn.events.events import TensorFacts
from pytest_trainsafe.judges.learn.instrument.patching.catalogue import Target

#: The kinds of calls by the name of the function.
_BY_API = {
    "torch.Tensor.backward": "backward",
    "torch.autograd.backward": "backward",
    "torch.autograd.grad": "grad",
    "torch.manual_seed": "seed",
    "torch.set_rng_state": "restored",
    "torch.get_rng_state": "rng_read",
    "torch.load": "file_load",
    "torch.nn.utils.clip_grad_norm_": "clip",
    "torch.nn.utils.clip_grad_value_": "clip",
    "torch.nn.utils.clip_grads_with_norm_": "clip",
}
#: The kinds of calls by the class and the method.
_BY_METHOD: Sequence[tuple[type, Mapping[str, str]]] = (
    (
        Optimizer,
        {
            "__init__": "optimizer_made",
            "step": "step",
            "zero_grad": "zero_grad",
            "state_dict": "optimizer_state",
            "load_state_dict": "optimizer_load",
        },
    ),
    (
        LRScheduler,
        {"__init__": "scheduler_made", "step": "schedule", "load_state_dict": "scheduler_load"},
    ),
    (
        torch.amp.GradScaler,
        {
            "scale": "scale",
            "unscale_": "unscale",
            "step": "scaler_step",
            "update": "scaler_update",
            "load_state_dict": "scaler_load",
        },
    ),
    (
        nn.Module,
        {
            "zero_grad": "zero_grad",
            "load_state_dict": "module_load",
            "state_dict": "module_state",
            "train": "mode",
            "eval": "mode",
        },
    ),
)
#: The kinds that a role of its own has.
_BY_ROLE = (
    *("module", "checkpoint", "iter", "next", "init", "permuted", "dropout"),
    *("loss", "average", "replicated", "embedded", "attended", "collective", "declared"),
)

_NONE: frozenset[str] = frozenset()
#: In so many phases of a training it is looked at contents, from the first round of each on.
_PHASES = 8


def kind_of(target: Target) -> str:
    """The kind of the calls of a function that watchers may ask for; "" for others."""
    if target.role.kind in _BY_ROLE:
        return target.role.kind
    if target.role.kind == "step":
        return "step"
    if target.api in _BY_API:
        return _BY_API[target.api]
    if isinstance(target.owner, type):
        for cls, methods in _BY_METHOD:
            if issubclass(target.owner, cls):
                return methods.get(target.attribute, "")
    return ""


@dataclass(slots=True)
class Moment:
    """A call of `kind` (`kind_of`) on `thing`, at its begin or its end.

    `outer` is the moment of the call in which it happens, and `kinds` has the kinds of all of them.
    `result` and `failed` are known at the end.  `given` keeps what a watcher notes at the begin.
    """

    kind: str
    api: str
    thing: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    outer: Moment | None
    result: Any = None
    failed: bool = False
    given: dict[str, Any] = field(default_factory=dict)
    kinds: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        outer = self.outer
        if outer is None:
            self.kinds = _NONE
        else:
            self.kinds = outer.kinds if outer.kind in outer.kinds else outer.kinds | {outer.kind}

    def inside(self, *kinds: str) -> bool:
        """Whether it happens in a call of one of these kinds."""
        return not self.kinds.isdisjoint(kinds)

    @property
    def outermost(self) -> bool:
        """Whether it happens in no other call of its kind."""
        return self.kind not in self.kinds

    @property
    def around(self) -> list[tuple[str, Any]]:
        """The kind and the object of each call in which it happens, outermost first."""
        found = []
        outer = self.outer
        while outer is not None:
            found.append((outer.kind, outer.thing))
            outer = outer.outer
        return found[::-1]

    def argument(self, at: int, name: str, otherwise: Any = None) -> Any:
        """An argument by its position, without the object of a method, or its name."""
        return self.args[at] if at < len(self.args) else self.kwargs.get(name, otherwise)


@dataclass(slots=True)
class Training:
    """What the watchers know of the training in common.

    `rounds` counts the steps of optimizers, of which `began` is the one in which the last of the
    first `phases` began; `optimizers` are those that were seen, and `stepped`
    those that have stepped.  `models` yields
    the followed models, with their names.  `digest` is a hash of a tensor's content, which is read
    again if the second argument is true.  `weights` yields each parameter whose content is
    recorded, with its name and its facts.  Three functions record a text under the name of an
    attribute: `graph` the description of a loss's graph, `shared` what ranks are compared by, and
    `note` what other runs of the program are compared by; they are None if nobody asks for that.
    `examples` has hashes of this round's examples, in the first rounds of a training.
    """

    slip: Callable[[str, str], None]
    models: Callable[[], Iterator[tuple[str, nn.Module]]]
    digest: Callable[[torch.Tensor, bool], int]
    weights: Callable[[], Iterator[tuple[str, torch.Tensor, TensorFacts]]]
    graph: Callable[[str, str], None] | None = None
    shared: Callable[[str, str], None] | None = None
    note: Callable[[str, str], None] | None = None
    rounds: int = 0
    began: int = 0
    phases: int = 0
    examples: list[int] = field(default_factory=list)
    optimizers: weakref.WeakSet[Optimizer] = field(default_factory=weakref.WeakSet)
    stepped: weakref.WeakSet[Optimizer] = field(default_factory=weakref.WeakSet)

    @property
    def ranks(self) -> bool:
        """Whether texts are recorded by which this process is compared with other ranks."""
        return self.shared is not None and several_ranks()

    @property
    def young(self) -> int:
        """How many rounds there were since the last optimizer was made, of the first ones."""
        return self.rounds - self.began

    def made(self, optimizer: Optimizer) -> None:
        """Another optimizer was made, with which a phase of the training may begin."""
        self.optimizers.add(optimizer)
        if self.phases < _PHASES:
            self.phases, self.began = self.phases + 1, self.rounds

    def begins(self, optimizer: Optimizer) -> bool:
        """Whether a new optimizer begins another training, as of the next fold or seed.

        None of its parameters is held by an optimizer that has stepped.
        """
        own = {id(each) for each in parameters_of(optimizer)}
        return bool(self.rounds) and not any(
            id(each) in own for one in self.stepped for each in parameters_of(one)
        )

    def held(self) -> set[int]:
        """The ids of the parameters that optimizers hold."""
        return {
            id(parameter)
            for optimizer in self.optimizers
            for group in optimizer.param_groups
            for parameter in group["params"]
        }


class Watcher:
    """Watches for slips.  `kinds` are the kinds of calls that it sees."""

    kinds: ClassVar[tuple[str, ...]] = ()

    def __init__(self, training: Training) -> None:
        self.training = training

    def entered(self, moment: Moment) -> None:
        """Called when a call begins."""

    def left(self, moment: Moment) -> None:
        """Called when a call has returned or raised."""

    def ended(self) -> None:
        """Called when the observation ends."""


def parameters_of(optimizer: Optimizer) -> Iterator[torch.Tensor]:
    """The parameters of all groups of an optimizer."""
    for group in optimizer.param_groups:
        yield from group["params"]


def wraps(optimizer: Optimizer) -> bool:
    """Whether an optimizer is not a class of torch and has another optimizer as an attribute.

    The steps of the inner optimizer are observed instead of the wrapper's, because a wrapper may
    skip the inner step, for example while gradients accumulate.
    """
    return not type(optimizer).__module__.startswith("torch.") and any(
        isinstance(each, Optimizer) for each in vars(optimizer).values()
    )


def several_ranks() -> bool:
    """Whether this process is one of several ranks."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
