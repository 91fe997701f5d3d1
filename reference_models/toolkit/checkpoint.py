"""Saves model weights in files and loads them; tensors that share memory are written once."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from safetensors.torch import load_file, save_file
from torch import Tensor, nn


def write_tensors(tensors: Mapping[str, Tensor], path: Path, total: int) -> int:
    """Write tensors to a file and return their number.

    `total`, the number of tensors that the model has, does not affect the file.  It is an argument
    so that learned invariants can compare it with the number of tensors written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file({name: tensor.detach().clone() for name, tensor in tensors.items()}, path)
    return len(tensors)


class Checkpointer:
    """Saves the weights of a model in a folder and loads them again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def save(self, model: nn.Module, name: str = "model") -> int:
        """Write every tensor of the model once, under its first name; return their number."""
        state = model.state_dict()
        kept = self.unshared(state)
        total = len({self.extent(tensor) for tensor in state.values()})
        return write_tensors({each: state[each] for each in kept}, self._path(name), total)

    def load(self, model: nn.Module, name: str = "model") -> list[str]:
        """Load the tensors in the file; return the names of tensors that the file lacks."""
        result = model.load_state_dict(load_file(self._path(name)), strict=False)
        return list(result.missing_keys)

    def unshared(self, state: Mapping[str, Tensor]) -> list[str]:
        """Return the names to write: for each tensor, the first of its names."""
        first: dict[tuple[int, ...], str] = {}
        for name, tensor in state.items():
            first.setdefault(self.extent(tensor), name)
        return list(first.values())

    def extent(self, tensor: Tensor) -> tuple[int, ...]:
        """Return what identifies a tensor's memory: address, number and size of elements."""
        return (tensor.data_ptr(), tensor.numel(), tensor.element_size())

    def _path(self, name: str) -> Path:
        return self.folder / f"{name}.safetensors"
