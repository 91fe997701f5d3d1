"""Model weights in files; tensors that share memory are written once."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from safetensors.torch import load_file, save_file
from torch import Tensor, nn


def write_tensors(tensors: Mapping[str, Tensor], path: Path, total: int) -> int:
    """Write tensors to a file; returns how many.  `total` is how many the model has."""
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file({name: tensor.detach().clone() for name, tensor in tensors.items()}, path)
    return len(tensors)


class Checkpointer:
    """Saves the weights of a model in a folder and loads them again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def save(self, model: nn.Module, name: str = "model") -> int:
        """Write every tensor of the model, those under several names under the first."""
        state = model.state_dict()
        kept = self.unshared(state)
        total = len({self.extent(tensor) for tensor in state.values()})
        return write_tensors({each: state[each] for each in kept}, self._path(name), total)

    def load(self, model: nn.Module, name: str = "model") -> list[str]:
        """Load what the file has; returns the names of tensors that it does not have."""
        result = model.load_state_dict(load_file(self._path(name)), strict=False)
        return list(result.missing_keys)

    def unshared(self, state: Mapping[str, Tensor]) -> list[str]:
        """The names to write: the first of every tensor."""
        first: dict[tuple[int, ...], str] = {}
        for name, tensor in state.items():
            first.setdefault(self.extent(tensor), name)
        return list(first.values())

    def extent(self, tensor: Tensor) -> tuple[int, ...]:
        """The memory that a tensor covers."""
        return (tensor.data_ptr(), tensor.numel(), tensor.element_size())

    def _path(self, name: str) -> Path:
        return self.folder / f"{name}.safetensors"
