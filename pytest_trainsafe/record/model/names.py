"""Canonical names: the module and parameter names that a single device would use.

Wrappers such as DistributedDataParallel add a level to every name.  The recorder and
`ctx.initialize` remove it, so that names in a wrapped candidate match those in its reference, which
has no wrappers.
"""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn

from pytest_trainsafe.record.clock import ProgramError

#: The attributes under which wrappers keep the wrapped module.
WRAPPERS = frozenset(
    {
        "module",  # DistributedDataParallel and DeepSpeed's engine, at the root only
        "_orig_mod",  # torch.compile
        "_fsdp_wrapped_module",  # FullyShardedDataParallel
        "_checkpoint_wrapped_module",  # torch's activation checkpoint wrapper
        "deepspeed_moe",  # in DeepSpeed's MoE layer
        "deepspeed_experts",  # in its Experts
    }
)


def canonical(name: str) -> str:
    """Removes the levels that wrappers add: `module._orig_mod.layers.0` becomes `layers.0`.

    `module` is removed only at the root, because a model may use that name further down.
    """
    levels = name.split(".") if name else []
    kept: list[str] = []
    for level in levels:
        if level == "module" and not kept:
            continue
        if level in WRAPPERS and level != "module":
            continue
        kept.append(level)
    return ".".join(kept)


def split(name: str) -> tuple[str, str]:
    """Splits off the last level: `layers.0.fc.weight` gives `("layers.0.fc", "weight")`."""
    module, _, leaf = name.rpartition(".")
    return module, leaf


def unique_parameters(named: Iterable[tuple[str, nn.Parameter]]) -> dict[str, nn.Parameter]:
    """Maps canonical names to parameters; tied parameters occur once, under their first name.

    Raises ProgramError if two different parameters have the same name.
    """
    seen: set[int] = set()
    unique: dict[str, nn.Parameter] = {}
    for name, parameter in named:
        if id(parameter) in seen:
            continue
        if name in unique:
            raise ProgramError(
                f"two parameters are called {name!r} after the levels that wrappers add to names "
                "(`module.` at the root, `_orig_mod.`) are removed; rename one of the attributes"
            )
        seen.add(id(parameter))
        unique[name] = parameter
    return unique
