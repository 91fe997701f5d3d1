"""Describes each collective for the ledger: one function per signature in `torch.distributed`.

Each function has the parameters of its collective under the same names, since callers may pass
any argument by keyword.  It returns the facts of the call that are compared between ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.distributed import ReduceOp
from torch.distributed import distributed_c10d as c10d

from pytest_trainsafe.compat.distributed.process_groups import group_of


@dataclass(slots=True)
class Detail:
    """The facts of one call.

    `gives` and `takes` count the elements sent to and received from each rank of the group: a
    list, or one number if all are equal.
    """

    tensor: Tensor | None
    group: Any
    reduce: str = ""
    root: int | None = None
    group_root: int | None = None
    peer: int | None = None
    group_peer: int | None = None
    tag: int = 0
    gives: list[int] | int | None = None
    takes: list[int] | int | None = None
    detail: str = ""


Describe = Callable[..., Detail]
_SUM = ReduceOp.SUM


def _op(op: Any) -> str:
    """The ReduceOp's name, such as SUM."""
    return str(getattr(op, "op", op)).rpartition(".")[2].upper()


def _numels(tensors: Sequence[Tensor] | None) -> list[int] | None:
    return None if not tensors else [tensor.numel() for tensor in tensors]


def _split(tensor: Tensor, sizes: list[int] | None, group: Any) -> list[int] | int:
    """The number of elements of each rank's part of a tensor; one number if all are equal.

    `sizes` counts rows: it has each part's size along dimension 0.  Without it, parts are equal.
    """
    if sizes:
        row = tensor.numel() // max(tensor.shape[0], 1)
        return [size * row for size in sizes]
    return tensor.numel() // c10d.get_world_size(group)


def _all_reduce(tensor: Tensor, op: Any = _SUM, group: Any = None, async_op: Any = False) -> Detail:
    return Detail(tensor, group, _op(op))


def _coalesced(tensors: Any, op: Any = _SUM, group: Any = None, async_op: Any = False) -> Detail:
    sizes = [tensors.numel()] if isinstance(tensors, Tensor) else [t.numel() for t in tensors]
    return Detail(None, group, _op(op), detail=f"{sizes} elements")


def _broadcast(
    tensor: Tensor,
    src: int | None = None,
    group: Any = None,
    async_op: Any = False,
    group_src: int | None = None,
) -> Detail:
    return Detail(tensor, group, root=src, group_root=group_src)


def _reduce(
    tensor: Tensor,
    dst: int | None = None,
    op: Any = _SUM,
    group: Any = None,
    async_op: Any = False,
    group_dst: int | None = None,
) -> Detail:
    return Detail(tensor, group, _op(op), root=dst, group_root=group_dst)


def _all_gather(
    tensor_list: Any, tensor: Tensor, group: Any = None, async_op: Any = False
) -> Detail:
    return Detail(tensor, group, gives=tensor.numel(), takes=_numels(tensor_list))


def _gather_single(
    output_tensor: Any, input_tensor: Tensor, group: Any = None, async_op: Any = False
) -> Detail:
    return Detail(input_tensor, group)


def _reduce_scatter(
    output: Tensor, input_list: Any, op: Any = _SUM, group: Any = None, async_op: Any = False
) -> Detail:
    return Detail(output, group, _op(op), gives=_numels(input_list), takes=output.numel())


def _scatter_single(
    output: Any,
    input: Tensor,
    op: Any = _SUM,
    group: Any = None,
    async_op: Any = False,
) -> Detail:
    return Detail(input, group, _op(op))


def _all_to_all(
    output_tensor_list: Any, input_tensor_list: Any, group: Any = None, async_op: Any = False
) -> Detail:
    gives, takes = _numels(input_tensor_list), _numels(output_tensor_list)
    return Detail(input_tensor_list[0], group, gives=gives, takes=takes)


def _all_to_all_single(
    output: Tensor,
    input: Tensor,
    output_split_sizes: Any = None,
    input_split_sizes: Any = None,
    group: Any = None,
    async_op: Any = False,
) -> Detail:
    gives, takes = (
        _split(input, input_split_sizes, group),
        _split(output, output_split_sizes, group),
    )
    return Detail(input, group, gives=gives, takes=takes)


def _gather(
    tensor: Tensor,
    gather_list: Any = None,
    dst: int | None = None,
    group: Any = None,
    async_op: Any = False,
    group_dst: int | None = None,
) -> Detail:
    root = 0 if dst is None and group_dst is None else dst
    sizes = _numels(gather_list)
    return Detail(tensor, group, root=root, group_root=group_dst, gives=tensor.numel(), takes=sizes)


def _scatter(
    tensor: Tensor,
    scatter_list: Any = None,
    src: int | None = None,
    group: Any = None,
    async_op: Any = False,
    group_src: int | None = None,
) -> Detail:
    root = 0 if src is None and group_src is None else src
    sizes = _numels(scatter_list)
    return Detail(tensor, group, root=root, group_root=group_src, gives=sizes, takes=tensor.numel())


def _barrier(group: Any = None, *_: Any, **__: Any) -> Detail:
    return Detail(None, group)


def _send(
    tensor: Tensor,
    dst: int | None = None,
    group: Any = None,
    tag: int = 0,
    group_dst: int | None = None,
) -> Detail:
    return Detail(tensor, group, peer=dst, group_peer=group_dst, tag=tag)


def _recv(
    tensor: Tensor,
    src: int | None = None,
    group: Any = None,
    tag: int = 0,
    group_src: int | None = None,
) -> Detail:
    return Detail(tensor, group, peer=src, group_peer=group_src, tag=tag)


def _all_gather_object(
    object_list: Any, obj: Any, group: Any = None, weights_only: bool = False
) -> Detail:
    return Detail(None, group)


def _broadcast_objects(
    object_list: Any,
    src: int | None = None,
    group: Any = None,
    device: Any = None,
    group_src: int | None = None,
    weights_only: bool = False,
) -> Detail:
    return Detail(None, group, root=src, group_root=group_src)


def _gather_object(
    obj: Any,
    object_gather_list: Any = None,
    dst: int | None = None,
    group: Any = None,
    group_dst: int | None = None,
    weights_only: bool = False,
) -> Detail:
    root = 0 if dst is None and group_dst is None else dst
    return Detail(None, group, root=root, group_root=group_dst)


def _scatter_objects(
    scatter_object_output_list: Any,
    scatter_object_input_list: Any = None,
    src: int | None = None,
    group: Any = None,
    group_src: int | None = None,
    weights_only: bool = False,
) -> Detail:
    root = 0 if src is None and group_src is None else src
    return Detail(None, group, root=root, group_root=group_src)


#: public function -> (its name in the ledger, the function that describes a call)
DESCRIBE: dict[str, tuple[str, Describe]] = {
    "all_reduce": ("all_reduce", _all_reduce),
    "all_reduce_coalesced": ("all_reduce_coalesced", _coalesced),
    "broadcast": ("broadcast", _broadcast),
    "reduce": ("reduce", _reduce),
    "all_gather": ("all_gather", _all_gather),
    "all_gather_into_tensor": ("all_gather_into_tensor", _gather_single),
    "all_gather_single": ("all_gather_into_tensor", _gather_single),
    "_all_gather_base": ("all_gather_into_tensor", _gather_single),
    "reduce_scatter": ("reduce_scatter", _reduce_scatter),
    "reduce_scatter_tensor": ("reduce_scatter_tensor", _scatter_single),
    "reduce_scatter_single": ("reduce_scatter_tensor", _scatter_single),
    "_reduce_scatter_base": ("reduce_scatter_tensor", _scatter_single),
    "all_to_all": ("all_to_all", _all_to_all),
    "all_to_all_single": ("all_to_all_single", _all_to_all_single),
    "gather": ("gather", _gather),
    "scatter": ("scatter", _scatter),
    "barrier": ("barrier", _barrier),
    "monitored_barrier": ("monitored_barrier", _barrier),
    "send": ("send", _send),
    "isend": ("send", _send),
    "recv": ("recv", _recv),
    "irecv": ("recv", _recv),
    "all_gather_object": ("all_gather_object", _all_gather_object),
    "broadcast_object_list": ("broadcast_object_list", _broadcast_objects),
    "gather_object": ("gather_object", _gather_object),
    "scatter_object_list": ("scatter_object_list", _scatter_objects),
}


def _f_broadcast(self: Tensor, src: int, group: Any, tag: str = "") -> Detail:
    # In torch's functional collectives, src is a rank within the group.
    return Detail(self, group_of(group, tag), group_root=src)


def _f_all_reduce(self: Tensor, reduceOp: str, group: Any, tag: str = "") -> Detail:
    return Detail(self, group_of(group, tag), _op(reduceOp))


def _f_all_gather(self: Tensor, gather_dim: int, group: Any, tag: str = "") -> Detail:
    return Detail(self, group_of(group, tag))


def _f_reduce_scatter(
    self: Tensor,
    reduceOp: str,
    scatter_dim: int,
    group: Any,
    tag: str = "",
) -> Detail:
    return Detail(self, group_of(group, tag), _op(reduceOp))


def _f_all_to_all(
    self: Tensor, output_split_sizes: Any, input_split_sizes: Any, group: Any, tag: str = ""
) -> Detail:
    resolved = group_of(group, tag)
    row = self.numel() // max(self.shape[0], 1)
    takes = [size * row for size in output_split_sizes] if output_split_sizes else None
    gives = _split(self, input_split_sizes, resolved)
    if takes is None:
        return Detail(self, resolved, gives=gives, takes=_split(self, None, resolved))
    return Detail(self, resolved, gives=gives, takes=takes)


#: Like DESCRIBE, for `torch.distributed._functional_collectives`, which DTensor uses.
FUNCTIONAL: dict[str, tuple[str, Describe]] = {
    "broadcast": ("broadcast", _f_broadcast),
    "all_reduce": ("all_reduce", _f_all_reduce),
    "all_gather_single": ("all_gather_into_tensor", _f_all_gather),
    "all_gather_single_autograd": ("all_gather_into_tensor", _f_all_gather),
    "all_gather_tensor": ("all_gather_into_tensor", _f_all_gather),
    "all_gather_tensor_autograd": ("all_gather_into_tensor", _f_all_gather),
    "reduce_scatter_single": ("reduce_scatter_tensor", _f_reduce_scatter),
    "reduce_scatter_single_autograd": ("reduce_scatter_tensor", _f_reduce_scatter),
    "reduce_scatter_tensor": ("reduce_scatter_tensor", _f_reduce_scatter),
    "reduce_scatter_tensor_autograd": ("reduce_scatter_tensor", _f_reduce_scatter),
    "all_to_all_single": ("all_to_all_single", _f_all_to_all),
    "all_to_all_single_autograd": ("all_to_all_single", _f_all_to_all),
}
