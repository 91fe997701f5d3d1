"""The APIs of PyTorch that are observed by default, and what a call of each may change."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader, Sampler

from pytest_trainsafe.compat.loaders import iterator_classes
from pytest_trainsafe.judges.learn.instrument.names import public_name


@dataclass(frozen=True, slots=True)
class Role:
    """What the observer does around a call.

    `phase` is the phase in which the code inside the call runs; "" stands for the phase of the
    caller.  If `compares` is true, the state of all followed objects is compared before and after
    the call.  In the comparison after the call, tensors of the kinds in `exact` are read even if
    nothing seems to have written to them.  `always` says that the function is patched in every
    observation, since it shows phases, steps or new objects.

    `kind` says what else the observer does:

    - "made", for a constructor: follows the new object;
    - "used", for a method: follows the object of the method;
    - "step", for a step of an optimizer: follows the optimizer, and may end the training step;
    - "module", for a call of a module: follows the model, and determines the phase inside the call;
    - "checkpoint", for activation checkpointing: determines the phase inside the call;
    - "iter" and "next", for an iteration over a loader: counts the epochs and the batches;
    - "init" and "permuted", for an initialisation of a tensor and for `randperm`: records the call
      only if its API is named;
    - "dropout", "loss", "average", "replicated", "embedded", "attended", "collective" and
      "declared": nothing but what `slips/` watches for;
    - "": nothing else.

    `judged` says that the function is patched wherever slips are watched for.
    """

    kind: str = ""
    phase: str = ""
    compares: bool = False
    exact: frozenset[str] = frozenset()
    always: bool = False
    judged: bool = False


@dataclass(frozen=True, slots=True)
class Target:
    """A function or a method to patch: `attribute` of `owner`, which is a module or a class.

    `api` is its name where it is defined, and `role` what the observer does around its calls.
    `static` says that it is a static method.
    """

    owner: Any
    attribute: str
    api: str
    role: Role
    static: bool = False

    @property
    def method(self) -> str:
        """The last part of the API's name."""
        return "forward" if self.role.kind == "module" else self.attribute

    @property
    def is_method(self) -> bool:
        """Whether its first argument is the object that it is called on."""
        return isinstance(self.owner, type) and not self.static


PLAIN = Role()
CHANGES = Role(compares=True)
_ALL = frozenset({"data", "grad", "buffer", "state"})
_SAVES, _LOADS = Role(phase="save"), Role(phase="load", compares=True, exact=_ALL)
_OPTIMIZES = Role(phase="optimizer", compares=True)
_DRAWS, _LOSES = Role("dropout", judged=True), Role("loss", judged=True)
_INITIALISES = Role("init", judged=True)
_REPLICATES = Role("replicated", compares=True)
_COMMUNICATES = Role("collective", compares=True, judged=True)
_SAVES_STATE = Role(phase="save", judged=True)

_OPTIMIZER = {
    "__init__": Role("made", "init", compares=True, always=True),
    "step": Role("step", "optimizer", True, frozenset({"data", "state"}), always=True),
    "zero_grad": Role("used", "optimizer", compares=True),
    "add_param_group": CHANGES,
    "state_dict": _SAVES_STATE,
    "load_state_dict": _LOADS,
}
_SCHEDULER = {
    "__init__": Role("made", "init", compares=True, always=True),
    "step": Role("used", "optimizer", compares=True),
    "state_dict": _SAVES,
    "load_state_dict": _LOADS,
}
_SCALER = {
    "__init__": Role("made", "init", compares=True, always=True),
    "scale": Role("used", compares=True),
    "unscale_": Role("used", "optimizer", True, frozenset({"grad"})),
    "step": Role("used", "optimizer", compares=True),
    "update": Role("used", "optimizer", compares=True),
    "state_dict": _SAVES,
    "load_state_dict": _LOADS,
}
_MODULE = {
    "__call__": Role("module", always=True),
    **dict.fromkeys(("train", "eval", "requires_grad_", "zero_grad", "to", "apply"), CHANGES),
    **dict.fromkeys(("half", "float", "double", "bfloat16", "cuda", "cpu"), CHANGES),
    "state_dict": _SAVES_STATE,
    "load_state_dict": _LOADS,
}
_LOADER = {
    "__init__": Role("made", "data", always=True),
    "__iter__": Role("iter", compares=True, always=True),
}
_SAMPLER = {"__init__": Role("made", "data"), "set_epoch": Role("used", "data", compares=True)}

_BACKWARD = Role(phase="backward", compares=True, exact=frozenset({"grad"}))

#: Functions by name, and their roles.
_FUNCTIONS = {
    "torch.autograd.backward": _BACKWARD,
    "torch.autograd.grad": Role(phase="backward", compares=True, judged=True),
    **{
        f"torch.nn.utils.{name}": _OPTIMIZES
        for name in (
            *("clip_grad_norm_", "clip_grad_value_", "clip_grads_with_norm_", "get_total_norm"),
            *("parameters_to_vector", "vector_to_parameters"),
        )
    },
    "torch.save": _SAVES,
    "torch.load": Role(phase="load", judged=True),
    "torch.randperm": Role("permuted", judged=True),
    "torch.utils.checkpoint.checkpoint": Role("checkpoint", always=True),
    **dict.fromkeys(
        ("torch.manual_seed", "torch.set_rng_state", "torch.get_rng_state"), Role(judged=True)
    ),
    **dict.fromkeys(
        (
            *("torch.seed", "random.seed"),
            *("torch.cuda.manual_seed", "torch.cuda.manual_seed_all", "numpy.random.seed"),
            "torch.use_deterministic_algorithms",
        ),
        PLAIN,
    ),
}

#: Prefixes of functions of torch.distributed that are queries.  They say nothing about training.
_QUERIES = ("get_", "is_", "supports_", "record_comm")

#: Functions in torch.nn.functional that drop elements, besides those whose names say so.
_ATTENTION = "scaled_dot_product_attention"

#: Functions in torch.nn.functional that slips are watched for in, besides those.
_FUNCTIONALS = {
    **dict.fromkeys(
        (
            *(
                "cross_entropy",
                "nll_loss",
                "ctc_loss",
                "kl_div",
                "binary_cross_entropy_with_logits",
                "binary_cross_entropy",
            ),
            *("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "margin_ranking_loss"),
            *("cosine_embedding_loss", "hinge_embedding_loss", "soft_margin_loss"),
        ),
        _LOSES,
    ),
    "embedding": Role("embedded", judged=True),
    "multi_head_attention_forward": Role("attended", judged=True),
}

#: Functions in torch.nn.functional that are internal to torch.
_NO_API = ("has_torch_function", "handle_torch_function", "boolean_dispatch")

#: Classes that wrap a model, whose construction is observed if their module is loaded.
_WRAPPERS = (
    "torch.nn.parallel.DistributedDataParallel",
    "torch.nn.DataParallel",
    "torch.distributed.fsdp.FullyShardedDataParallel",
)


def catalogue() -> Iterator[Target]:
    """Every function and method of PyTorch that is observed by default."""
    yield from optimizers()
    yield from _of_tree(LRScheduler, _SCHEDULER)
    yield from _of_tree(torch.amp.GradScaler, _SCALER)
    yield from _of_class(nn.Module, _MODULE)
    yield from _of_tree(DataLoader, _LOADER)
    yield from _of_tree(Sampler, _SAMPLER)
    next_batch = Role("next", "data", compares=True, always=True)
    for iterator in iterator_classes():
        if "__next__" in vars(iterator):
            yield Target(iterator, "__next__", "torch.utils.data.DataLoader.__next__", next_batch)
    yield Target(torch.Tensor, "backward", "torch.Tensor.backward", _BACKWARD)
    for name in _WRAPPERS:
        module, _, last = name.rpartition(".")
        cls = getattr(sys.modules.get(module), last, None)
        if isinstance(cls, type):
            role = CHANGES if name != _WRAPPERS[0] else _REPLICATES
            yield Target(cls, "__init__", f"{name}.__init__", role)
    for name, role in _FUNCTIONS.items():
        module, _, last = name.rpartition(".")
        owner = random if module == "random" else sys.modules.get(module)
        if owner is not None and hasattr(owner, last):
            yield Target(owner, last, name, role)
    for name, function in vars(nn.functional).items():
        if not name.startswith(("_", *_NO_API)) and _is_functional(function):
            role = _DRAWS if "dropout" in name or name == _ATTENTION else PLAIN
            role = _FUNCTIONALS.get(name, role)
            yield Target(nn.functional, name, f"torch.nn.functional.{name}", role)
    for name, function in vars(nn.init).items():
        if name.endswith("_") and not name.startswith("_") and isinstance(function, FunctionType):
            yield Target(nn.init, name, f"torch.nn.init.{name}", _INITIALISES)
    averaged = getattr(sys.modules.get("torch.optim.swa_utils"), "AveragedModel", None)
    if isinstance(averaged, type):
        yield from _of_class(averaged, {"update_parameters": Role("average", compares=True)})
    yield from _collectives()
    sharded = getattr(sys.modules.get("torch.distributed.tensor"), "DTensor", None)
    if isinstance(sharded, type):
        name = "torch.distributed.tensor.DTensor.from_local"
        yield Target(sharded, "from_local", name, Role("declared", judged=True), static=True)


def optimizers() -> Iterator[Target]:
    """The methods of every class of optimizers that exists now."""
    yield from _of_tree(Optimizer, _OPTIMIZER)


def _collectives() -> Iterator[Target]:
    if not torch.distributed.is_available():
        return
    for name in torch.distributed.distributed_c10d.__all__:
        function = vars(torch.distributed).get(name)
        if not name.startswith(_QUERIES) and type(function) is FunctionType:
            yield Target(torch.distributed, name, f"torch.distributed.{name}", _COMMUNICATES)


def _of_tree(root: type, roles: dict[str, Role]) -> Iterator[Target]:
    for cls in subclasses(root):
        yield from _of_class(cls, roles)


def subclasses(root: type) -> list[Any]:
    """A class and all its direct and indirect subclasses that exist now."""
    found: list[Any] = [root]
    for cls in found:
        found += [each for each in cls.__subclasses__() if each not in found]
    return found


def _of_class(cls: type, roles: dict[str, Role]) -> Iterator[Target]:
    for name, role in roles.items():
        method: Callable[..., Any] | None = vars(cls).get(name)
        if method is not None and callable(method):
            shown = "forward" if role.kind == "module" else name
            yield Target(cls, name, f"{public_name(cls)}.{shown}", role)


def _is_functional(function: object) -> bool:
    if isinstance(function, type) or not callable(function):
        return False
    module = getattr(function, "__module__", None) or ""
    return module.startswith(("torch.nn.functional", "torch._C", "torch._jit_internal")) or (
        module in ("", "builtins") and type(function).__name__ == "builtin_function_or_method"
    )
