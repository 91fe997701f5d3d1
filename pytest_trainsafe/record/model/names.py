"""Canonical names: the module and parameter names a single device would use.

Wrappers put their own level into every name; the recorder and `ctx.initialize` drop it, so that
a wrapped candidate lines up with its bare reference.
"""

from __future__ import annotations

#: The attribute under which each wrapper keeps the wrapped module.
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
    """Drop the levels that wrappers add: `module._orig_mod.layers.0` is `layers.0`.

    A level called `module` is a wrapper's only at the root; a model may have one of its own
    further down.
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
    """`layers.0.fc.weight` is `("layers.0.fc", "weight")`."""
    module, _, leaf = name.rpartition(".")
    return module, leaf
