"""Functions on one tensor: its values on this rank, its memory, layout, hash and gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import xxhash
from torch.utils.hooks import RemovableHandle

from pytest_trainsafe.compat.autograd import outside_transforms
from pytest_trainsafe.compat.dispatch_modes import without_modes
from pytest_trainsafe.compat.tensors import base_of, local_part, version_of
from pytest_trainsafe.core.layout import Layout, Sizes
from pytest_trainsafe.launch.collectives.ledger import name_tensor
from pytest_trainsafe.record.layouts.dtensor import dtensor_layout, is_dtensor
from pytest_trainsafe.trace.tensors.snapshot import as_array


def local_values(tensor: Any) -> torch.Tensor:
    """The tensor's values on this rank, detached; shares memory with a plain tensor."""
    if type(tensor) is torch.Tensor and not tensor.requires_grad:
        return tensor
    with outside_transforms():
        if type(tensor) is torch.Tensor:  # no operator of the program, so no mode need see it
            with without_modes():
                return tensor.detach()
        local: torch.Tensor = tensor.detach()
        if is_dtensor(local):
            local = local.to_local()  # type: ignore[attr-defined]
        # A subclass may be pending (`is_pending`); an operation on it waits for the values.
        return local if type(local) is torch.Tensor else local.clone()


def memory(tensor: torch.Tensor) -> int:
    """The address of a tensor's memory on this rank; 0 if it has none."""
    held: Any = tensor
    try:
        local = local_part(held) if is_dtensor(held) else held
        return int(local.untyped_storage().data_ptr())
    except (RuntimeError, NotImplementedError):  # fake and functional tensors have none
        return 0


def own_layout(tensor: torch.Tensor, sizes: Sizes) -> tuple[Layout, str] | None:
    """The layout that a DTensor's placements give, and "dtensor"; None for other tensors."""
    return (dtensor_layout(tensor, sizes), "dtensor") if is_dtensor(tensor) else None


def on_gradient(
    tensor: torch.Tensor, hook: Callable[[torch.Tensor], torch.Tensor | None]
) -> RemovableHandle:
    """Calls `hook` with the gradient of a tensor, each time that a backward computes it.

    torch also calls hooks without a gradient where a derivative is zero by definition, as in the
    second derivative of a sum. `hook` is not called then.
    """

    def defined(grad: torch.Tensor | None) -> torch.Tensor | None:
        return None if grad is None else hook(grad)

    handle: RemovableHandle = tensor.register_hook(defined)  # type: ignore[no-untyped-call]
    return handle


def alias_for_gradient(tensor: torch.Tensor) -> torch.Tensor:
    """An alias to pass on in place of an input, whose gradient is that of this one use.

    Hooks of the tensor itself would get the gradient summed over all of its uses.  Returns the
    tensor itself if it gets no gradient or is of a class whose views are unknown.
    """
    plain = type(tensor) is torch.Tensor or is_dtensor(tensor)
    if plain and tensor.requires_grad and torch.is_grad_enabled():
        return tensor.view_as(tensor)
    return tensor


def on_output_gradient(
    tensor: torch.Tensor, hook: Callable[[torch.Tensor], None]
) -> RemovableHandle:
    """Calls `hook` with the gradient of an output as it is now, before any in-place operation.

    An output may be a view; for example, `nn.Linear` returns a view for 3-d inputs.  After an
    in-place operation on a view, the gradient no longer passes through the autograd node that made
    the view.  In this case, `hook` gets the view's part of the gradient of the view's base.
    """
    base = base_of(tensor)
    if base is None or base.is_leaf or not base.requires_grad or base.dtype != tensor.dtype:
        return on_gradient(tensor, hook)
    if is_dtensor(tensor) or tensor.is_conj() != base.is_conj():
        return on_gradient(tensor, hook)
    # Detach the alias: a hook that references its own graph would never be freed.  Drop its memory,
    # so that an unused output can be freed; it still shares the version counter.
    alias, version = tensor.detach(), version_of(tensor)
    if type(alias) is torch.Tensor:
        alias.data = tensor.new_empty(0)
    shape, strides = base.shape, base.stride()
    own_shape, own_strides = tensor.shape, tensor.stride()
    offset = tensor.storage_offset() - base.storage_offset()

    output = tensor.output_nr

    def own(grads: tuple[torch.Tensor | None, ...]) -> None:
        grad = grads[output]
        if grad is not None and version_of(alias) == version:
            hook(grad)

    def of_base(grad: torch.Tensor) -> None:
        if version_of(alias) != version:
            whole = torch.empty_strided(shape, strides, dtype=grad.dtype, device=grad.device)
            whole.copy_(grad)
            hook(whole.as_strided(own_shape, own_strides, offset))

    on_gradient(base, of_base)
    # Hook the node and not the tensor: a view loses its hooks when it is modified in place.
    assert tensor.grad_fn is not None
    return tensor.grad_fn.register_prehook(own)


def tensor_hash(tensor: torch.Tensor) -> str:
    """The xxh3_128 hash of a tensor's dtype, shape and values on this rank."""
    with outside_transforms():
        local = local_values(tensor)
        if local.layout != torch.strided:
            local = local.to_dense()
        host = local.resolve_conj().resolve_neg().cpu().contiguous()
        digest = xxhash.xxh3_128(f"{host.dtype}{tuple(host.shape)}".encode())
        digest.update(as_array(host).data)
    return digest.hexdigest()


def rng_hash() -> str:
    """A hash of the states of torch's default generators, on the CPU and on the GPUs in use."""
    digest = xxhash.xxh3_128(torch.get_rng_state().numpy().data)
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        for state in torch.cuda.get_rng_state_all():
            digest.update(state.cpu().numpy().data)
    return digest.hexdigest()


def name_in_ledger(tensor: Any, name: str) -> None:
    """Names a tensor, so that collectives on it are recorded under this name.

    Does nothing for a tensor without strided memory, by which it is identified.
    """
    local = tensor.to_local() if is_dtensor(tensor) else tensor
    if type(local) in (torch.Tensor, torch.nn.Parameter) and local.layout == torch.strided:
        name_tensor(local, name)


def name_gradients(parameter: torch.Tensor, name: str) -> None:
    """Names the gradients of the parameter `name`: its `main_grad` now, `grad` when it is made.

    A program may reduce either of them during the backward.
    """

    def hook(of: torch.Tensor) -> None:
        if of.grad is not None:
            name_in_ledger(of.grad, f"{name}.grad")

    main = getattr(parameter, "main_grad", None)
    if isinstance(main, torch.Tensor):
        name_in_ledger(main, f"{name}.grad")
    parameter.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]
