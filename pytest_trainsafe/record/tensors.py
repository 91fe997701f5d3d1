"""How the recorder looks at one tensor: its values on this rank, its own layout, its hash."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import xxhash
from torch.utils.hooks import RemovableHandle

from pytest_trainsafe.align.dtensor import dtensor_layout, is_dtensor
from pytest_trainsafe.align.layout import Layout, Sizes
from pytest_trainsafe.launch.ledger import name_tensor
from pytest_trainsafe.trace.writer import as_bytes


def local_values(tensor: Any) -> torch.Tensor:
    """What this rank holds, detached; shares memory with a plain tensor."""
    local: torch.Tensor = tensor.detach()
    if is_dtensor(local):
        local = local.to_local()  # type: ignore[attr-defined]
    # A subclass may be a promise (AsyncCollectiveTensor); an operation on it waits for it.
    return local if type(local) is torch.Tensor else local.clone()


def own_layout(tensor: torch.Tensor, sizes: Sizes) -> tuple[Layout, str] | None:
    """The layout that a tensor itself knows (DTensor placements) and its source, else None."""
    return (dtensor_layout(tensor, sizes), "dtensor") if is_dtensor(tensor) else None


def on_gradient(
    tensor: torch.Tensor, hook: Callable[[torch.Tensor], torch.Tensor | None]
) -> RemovableHandle:
    """Call `hook` with the gradient of a tensor, each time a backward computes it."""
    handle: RemovableHandle = tensor.register_hook(hook)  # type: ignore[no-untyped-call]
    return handle


def tensor_hash(tensor: torch.Tensor) -> str:
    """xxh3_128 of a tensor's dtype, shape and values on this rank."""
    local = local_values(tensor)
    if local.layout != torch.strided:
        local = local.to_dense()
    host = local.resolve_conj().resolve_neg().cpu().contiguous()
    digest = xxhash.xxh3_128(f"{host.dtype}{tuple(host.shape)}".encode())
    digest.update(as_bytes(host).numpy().data)
    return digest.hexdigest()


def rng_hash() -> str:
    """A hash of the default generators' state, on the CPU and on every GPU in use."""
    digest = xxhash.xxh3_128(torch.get_rng_state().numpy().data)
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        for state in torch.cuda.get_rng_state_all():
            digest.update(state.cpu().numpy().data)
    return digest.hexdigest()


def tell_ledger(tensor: Any, name: str) -> None:
    """Let the ledger of collectives call a tensor by this name, where it has memory to go by."""
    local = tensor.to_local() if is_dtensor(tensor) else tensor
    if type(local) in (torch.Tensor, torch.nn.Parameter) and local.layout == torch.strided:
        name_tensor(local, name)
