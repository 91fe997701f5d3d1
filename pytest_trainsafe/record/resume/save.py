"""A checkpoint of a whole training, which goes on bit by bit where it is loaded.

For programs that have no checkpoints of their own yet.  The model and the optimizer are saved
through torch.distributed.checkpoint, so that another number of ranks can load them.
"""

from __future__ import annotations

import contextlib
import os
import random
import sys
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import nn

from pytest_trainsafe.core.usage import listing, shown
from pytest_trainsafe.errors import ArgumentError, ArgumentTypeError


class Stateful(Protocol):
    """What `state_dict` gives, `load_state_dict` takes: schedulers, scalers, stateful loaders."""

    def state_dict(self) -> Any: ...
    def load_state_dict(self, state_dict: Any, /) -> Any: ...


class TrainingCheckpoint:
    """Saves and loads a training: model, optimizer, random states, and whatever has a state_dict.

    `shared` has what is equal on all ranks, such as a scheduler and a gradient scaler, and
    `per_rank` what each rank has for itself, such as torchdata's StatefulDataLoader.  `generators`
    are generators of the program's own; torch's default ones, Python's and NumPy's are always
    included.  Raises ArgumentTypeError for an object that has no state_dict.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer | None = None,
        *,
        shared: Mapping[str, Stateful] | None = None,
        per_rank: Mapping[str, Stateful] | None = None,
        generators: Mapping[str, torch.Generator] | None = None,
    ) -> None:
        self._model, self._optimizer = model, optimizer
        self._shared, self._per_rank = dict(shared or {}), dict(per_rank or {})
        self._generators = dict(generators or {})
        for name, each in (*self._shared.items(), *self._per_rank.items()):
            if not all(callable(getattr(each, m, None)) for m in ("state_dict", "load_state_dict")):
                raise ArgumentTypeError(
                    f"TrainingCheckpoint was given {shown(each)} as {name!r}; it takes objects "
                    "with state_dict() and load_state_dict(), such as a scheduler, a GradScaler or "
                    "torchdata's StatefulDataLoader"
                )

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Saves into a folder that all ranks share; every rank calls it.

        Raises ArgumentError where several ranks have not initialised torch.distributed.
        """
        from torch.distributed.checkpoint.state_dict_saver import save

        rank, ranks = _rank()
        if ranks > 1 and not (dist.is_available() and dist.is_initialized()):
            raise ArgumentError(
                f"TrainingCheckpoint.save was called in one of {ranks} ranks (WORLD_SIZE) before "
                "torch.distributed was initialised, so they cannot divide what is saved; call "
                "torch.distributed.init_process_group, or use ctx.mesh or ctx.group, before"
            )
        # First, so that nothing that is drawn to save is missing when the training goes on.
        states = rng_states(self._generators)
        own = {name: each.state_dict() for name, each in self._per_rank.items()}
        shared = {name: each.state_dict() for name, each in self._shared.items()}
        path = Path(folder)
        path.mkdir(parents=True, exist_ok=True)
        with _alone_or_together():
            save(self._tensors(), checkpoint_id=path / "tensors")
        torch.save({"rng": states, "per_rank": own, "ranks": ranks}, path / f"rank{rank}.pt")
        if rank == 0:
            torch.save(shared, path / "shared.pt")

    def load(self, folder: str | os.PathLike[str]) -> None:
        """Loads all but the random states from a folder; every rank calls it.

        Another number of ranks than saved it can load it if `per_rank` is empty; raises
        ArgumentError otherwise.
        """
        from torch.distributed.checkpoint.state_dict import set_state_dict
        from torch.distributed.checkpoint.state_dict_loader import load

        path = Path(folder)
        own = self._of_rank(path)
        if own is None and self._per_rank:
            raise ArgumentError(
                f"{path} was saved by another number of ranks than the {_rank()[1]} here, and "
                f"{listing(self._per_rank)} belong to single ranks; divide their state by a rule "
                "of the program's own, and leave them out of per_rank"
            )
        held = self._tensors()
        with _alone_or_together():
            load(held, checkpoint_id=path / "tensors")
        set_state_dict(
            self._model,
            self._optimizer if self._optimizer is not None else (),
            model_state_dict=held["model"],
            optim_state_dict=held["optimizer"],
        )
        shared = torch.load(path / "shared.pt")
        for name, each in self._shared.items():
            each.load_state_dict(shared[name])
        for name, each in self._per_rank.items():
            assert own is not None
            each.load_state_dict(own["per_rank"][name])

    def load_rng(self, folder: str | os.PathLike[str]) -> bool:
        """Restores this rank's random states.  Call it last, after loaders are iterated over.

        Returns False, and restores nothing, if another number of ranks saved the folder: then no
        rank has a state that is its own.
        """
        own = self._of_rank(Path(folder))
        if own is None:
            return False
        restore_rng(own["rng"], self._generators)
        return True

    def _tensors(self) -> dict[str, Any]:
        from torch.distributed.checkpoint.state_dict import get_state_dict

        optimizer = self._optimizer if self._optimizer is not None else ()
        model, state = get_state_dict(self._model, optimizer)
        return {"model": model, "optimizer": state}

    def _of_rank(self, folder: Path) -> dict[str, Any] | None:
        """What this rank saved; None if another number of ranks did."""
        rank, ranks = _rank()
        first: dict[str, Any] = torch.load(folder / "rank0.pt")
        if first["ranks"] != ranks:
            return None
        found: dict[str, Any] = first if rank == 0 else torch.load(folder / f"rank{rank}.pt")
        return found


def rng_states(generators: Mapping[str, torch.Generator] | None = None) -> dict[str, Any]:
    """The states of this process's default generators, and of some of its own, for torch.save."""
    states: dict[str, Any] = {"torch": torch.get_rng_state(), "python": random.getstate()}
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        states["cuda"] = torch.cuda.get_rng_state_all()
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        name, keys, *rest = numpy.random.get_state()
        states["numpy"] = (name, torch.from_numpy(keys.copy()), *rest)
    states["own"] = {name: each.get_state() for name, each in (generators or {}).items()}
    return states


def restore_rng(
    states: Mapping[str, Any], generators: Mapping[str, torch.Generator] | None = None
) -> None:
    """Puts the states back that `rng_states` gave.

    Raises ArgumentError for a generator of the program's own whose state is not there.
    """
    missing = [name for name in generators or {} if name not in states["own"]]
    if missing:
        raise ArgumentError(
            f"the checkpoint has no state of the generators {listing(missing)}; it has "
            f"{listing(states['own']) or 'none'}"
        )
    torch.set_rng_state(states["torch"])
    random.setstate(states["python"])
    if "cuda" in states:
        torch.cuda.set_rng_state_all(states["cuda"])
    if "numpy" in states:
        import numpy

        name, keys, *rest = states["numpy"]
        numpy.random.set_state((name, keys.numpy(), *rest))
    for name, each in (generators or {}).items():
        each.set_state(states["own"][name])


@contextlib.contextmanager
def _alone_or_together() -> Iterator[None]:
    """Keeps torch from warning that a single process saves and loads for itself."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled, unavailable or")
        yield


def _rank() -> tuple[int, int]:
    """The number of this rank, and how many there are.

    A program may load before it initialises torch.distributed; the launcher's variables tell then.
    """
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
