"""Names that rules refer to: families of APIs, and kinds of variables.

A rule about `torch.optim.Adam.step` would say nothing about a program that uses SGD.  Therefore the
methods that all classes of a library have in common form a family, `torch.optim.*.step`.  The class
is a feature of the call, which a precondition may name.
"""

from __future__ import annotations

import functools
import re

#: The libraries whose APIs are observed for a pack, and whose functions are no code of a program.
#: Observing an API imports its module, and a pack may come from anybody, so APIs of other libraries
#: are not observed.
LIBRARIES = (
    *("torch", "torchdata", "torchvision", "torchtitan", "transformers", "accelerate"),
    *("deepspeed", "lightning", "megatron"),
)

_FAMILY = re.compile(r"(torch\.optim(?:\.lr_scheduler)?)\.([A-Z]\w*)\.(\w+)")

#: The family of every `zero_grad`, of optimizers and of modules.
ZERO_GRAD = "torch.optim.*.zero_grad"

#: Names of queries and of private methods.  They say nothing about training.
_INCIDENTAL = re.compile(
    r"(is|has|get|current|supports)_\w+|_(?!_)\w*|__(?!init__|iter__|next__|call__)\w+"
)

#: APIs whose calls depend on the model's architecture, not on how it is trained.
_ARCHITECTURE = re.compile(r"torch\.nn\.functional\.\w+|.*\.forward")


@functools.lru_cache(maxsize=4096)
def family(api: str) -> tuple[str, str]:
    """The family of an API and its class.  If it has no family: the API itself and "".

    >>> family("torch.optim.Adam.step")
    ('torch.optim.*.step', 'Adam')
    """
    if api.startswith("torch.nn.") and api.endswith(".zero_grad"):
        # It does the same as the optimizer's method, and programs call either.
        return ZERO_GRAD, "Module"
    found = _FAMILY.fullmatch(api)
    return (f"{found[1]}.*.{found[3]}", found[2]) if found else (api, "")


def patterns(api: str) -> tuple[str, ...]:
    """The names that calls of an API or a family may have, as patterns of `fnmatch`."""
    return (api, "torch.nn.*.zero_grad") if api == ZERO_GRAD else (api,)


@functools.lru_cache(maxsize=4096)
def is_incidental(api: str) -> bool:
    """Whether an API is a query, such as `torch.cuda.is_available`, or a private method."""
    return _INCIDENTAL.fullmatch(api.rpartition(".")[2]) is not None


@functools.lru_cache(maxsize=4096)
def is_architecture(api: str) -> bool:
    """Whether the model's architecture decides which calls of an API a program makes.

    This is so for `torch.nn.functional` and for every `forward`.
    """
    return _ARCHITECTURE.fullmatch(api) is not None


def is_own_module(api: str) -> bool:
    """Whether an API is the `forward` of the modules that programs define.

    These modules differ so much that no rule about their `forward` holds for several programs.
    """
    return api == "torch.nn.Module.forward"


@functools.lru_cache(maxsize=65536)
def variable(name: str, type_name: str) -> str:
    """The kind of an observed object: its class if it belongs to a model, else what it is used for.

    An optimizer may hold a parameter that belongs to no recorded model.  It is treated like a
    parameter of a model, because it is a master copy, or belongs to a model that is never called.

    >>> variable("model.fc.weight", "torch.nn.Parameter")
    'torch.nn.Parameter'
    >>> variable("optimizer.param_groups.0", "dict")
    'optimizer.param_groups'
    """
    parts = [part for part in name.split(".") if not part.isdigit()]
    head = parts[0].rstrip("0123456789") if parts else ""
    if head == "model" or parts[:2] == ["optimizer", "params"]:
        return type_name
    if head == "optimizer" and len(parts) > 1:
        return f"{head}.{parts[1]}"
    return head or type_name
