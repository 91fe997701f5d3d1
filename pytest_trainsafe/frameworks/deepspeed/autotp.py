"""The layouts of parameters and outputs that DeepSpeed's AutoTP splits.

They are read from attributes: AutoTP describes each parameter that it splits, for its checkpoints
(`deepspeed/module_inject/layers.py`).  Its layers are recognised by their class.
"""

from __future__ import annotations

from typing import Any

import torch

from pytest_trainsafe.core.indices import LayoutError
from pytest_trainsafe.core.layout import REPLICATED, Layout, Shard, Sizes, Slices

#: The attribute in which AutoTP describes a parameter, as a dict.
_DESCRIBED = "ds_autotp_universal_checkpoint_meta"

#: The module and name of the base class of AutoTP's layers that split a linear layer's output.
_COLUMN = ("deepspeed.module_inject.layers", "LinearLayer")


def autotp_layout(name: str, parameter: Any, sizes: Sizes) -> Layout | None:
    """The layout of a parameter that AutoTP has processed; None for any other parameter.

    Raises LayoutError for a split that AutoTP does not describe, or that is uneven within blocks.
    """
    described = getattr(parameter, _DESCRIBED, None)
    if described is None:
        return None
    dim, tp = described["partition_dim"], sizes["tp"]
    if tp == 1 or dim is None or described["replicated"]:
        return REPLICATED
    if described["conversion"]["unsupported_reason"]:
        raise LayoutError(f"{name}: {described['conversion']['unsupported_reason']}")
    whole = tuple(described["logical_shape"])
    blocks = tuple(described["sub_param_sizes"] or ())
    widths = described["sub_param_shard_widths"] or [described["partition_sizes"]]
    if all(len(set(each)) == 1 for each in widths):
        return (Shard(dim, "tp", blocks),)
    if blocks:
        raise LayoutError(f"{name}: AutoTP has split the blocks {list(blocks)} unevenly over tp")
    return (_uneven(parameter, dim, whole, list(widths[0])),)


def _uneven(parameter: Any, dim: int, whole: tuple[int, ...], lengths: list[int]) -> Slices:
    """The part that this rank holds of a parameter that is split unevenly along `dim`.

    `whole` is the shape of the whole parameter, and `lengths` has each rank's length along `dim`.
    """
    from torch import distributed

    rank = distributed.get_rank(parameter.gather_params.__self__.mp_group)
    offsets = tuple(sum(lengths[:rank]) if d == dim else 0 for d in range(len(whole)))
    held = tuple(lengths[rank] if d == dim else length for d, length in enumerate(whole))
    return Slices.rectangle(offsets, held, whole, ("tp",))


def autotp_output(module: torch.nn.Module) -> dict[str, object] | None:
    """The annotation for the output of an AutoTP layer that splits it; None for other modules."""
    column = any((each.__module__, each.__name__) == _COLUMN for each in type(module).__mro__)
    if not column or getattr(module, "gather_output", False):
        return None
    held: Any = module
    widths = getattr(held, "_subparam_shard_widths", None) or [held._partition_sizes]
    if any(len(set(each)) > 1 for each in widths):
        return {"local": ["tp"]}
    blocks = getattr(held, "_subparam_sizes", None)
    return {"tp_dim": -1, "blocks": list(blocks)} if blocks else {"tp_dim": -1}
