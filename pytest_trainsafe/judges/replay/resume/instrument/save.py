"""A checkpoint of a whole training, from which the training continues with the same bits.

For programs that have no checkpoints of their own yet. The model and the optimizer are saved
through torch.distributed.checkpoint, so that another number of ranks can load them.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import sys
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import nn

from pytest_trainsafe.core.rank import current_rank
from pytest_trainsafe.core.usage import excerpt, listing, shown
from pytest_trainsafe.errors import ArgumentError, ArgumentTypeError


class Stateful(Protocol):
    """An object with `state_dict` and `load_state_dict`, such as a scheduler or a scaler."""

    def state_dict(self) -> Any: ...
    def load_state_dict(self, state_dict: Any, /) -> Any: ...


class TrainingCheckpoint:
    """Saves and loads a training: model, optimizer, random states, and further stateful objects.

    `shared` has objects whose states are equal on all ranks, such as a scheduler and a gradient
    scaler. `per_rank` has objects whose states differ between ranks, such as torchdata's
    StatefulDataLoader. `generators` are generators that the program has created; the default
    generators of torch, Python and NumPy are always included. Raises ArgumentTypeError for an
    object without `state_dict` and `load_state_dict`.
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
                    f"TrainingCheckpoint was given {shown(each)} as {name!r}; pass an object with "
                    "state_dict() and load_state_dict(), such as a scheduler, a GradScaler or "
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
                f"TrainingCheckpoint.save was called on one of {ranks} ranks (WORLD_SIZE) before "
                "torch.distributed was initialised, so the ranks cannot divide what is saved; "
                "first call torch.distributed.init_process_group, or use ctx.mesh or ctx.group"
            )
        # Read the random states first, because saving may draw random numbers.
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

        The states of `shared` and `per_rank` are read as data: no code in the files can run.
        Raises ArgumentError for other states, and if `per_rank` is not empty and the checkpoint was
        saved by another number of ranks.
        """
        from torch.distributed.checkpoint.state_dict import set_state_dict
        from torch.distributed.checkpoint.state_dict_loader import load

        path = Path(folder)
        own = self._of_rank(path)
        if own is None and self._per_rank:
            raise ArgumentError(
                f"{path} was saved with a world size other than {_rank()[1]}, so the state of "
                f"{listing(self._per_rank)}, which was saved for each rank, cannot be loaded; do "
                "not pass these objects as per_rank, and save their state in a form that does not "
                "depend on the number of ranks"
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
        shared = _read(path / "shared.pt")
        for name, each in self._shared.items():
            each.load_state_dict(shared[name])
        for name, each in self._per_rank.items():
            assert own is not None
            each.load_state_dict(own["per_rank"][name])

    def load_rng(self, folder: str | os.PathLike[str]) -> bool:
        """Restores this rank's random states. Call it last, after creating the loaders' iterators.

        Returns True. If another number of ranks saved the folder, there is no state for this rank:
        restores nothing and returns False. Raises ArgumentError if the checkpoint lacks the state
        of one of the program's generators.
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
        """The data that this rank saved; None if another number of ranks saved the folder."""
        rank, ranks = _rank()
        first = _read(folder / "rank0.pt")
        if first["ranks"] != ranks:
            return None
        return first if rank == 0 else _read(folder / f"rank{rank}.pt")


def _read(file: Path) -> dict[str, Any]:
    """What `save` wrote into a file; as data, so that no code in it can run.

    Raises ArgumentError for objects of classes that torch does not take for data, and for a file
    that `save` did not write.
    """
    try:
        found = torch.load(file, weights_only=True)
    except FileNotFoundError:
        raise
    except Exception as error:  # torch raises errors of many classes for a damaged file
        refused = re.search(r"GLOBAL ([\w.]+)", str(error))
        raise ArgumentError(
            f"{file} cannot be loaded, because the state of an object holds a {refused[1]}, and "
            "checkpoints are read as data only; return tensors, numbers, texts, lists and dicts of "
            "these from its state_dict(), or allow a class that you trust with "
            "torch.serialization.add_safe_globals"
            if refused is not None
            else f"{file} is no file of a TrainingCheckpoint: {excerpt(str(error), 200)}. Save the "
            "checkpoint again"
        ) from None
    if not isinstance(found, dict):
        raise ArgumentError(
            f"{file} is no file of a TrainingCheckpoint: it holds {shown(found)}. Save the "
            "checkpoint again"
        )
    return found


def rng_states(generators: Mapping[str, torch.Generator] | None = None) -> dict[str, Any]:
    """The states of this process's default generators and of `generators`, for torch.save."""
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
    """Restores the states that `rng_states` returned.

    Raises ArgumentError if the state of one of `generators` is missing.
    """
    missing = [name for name in generators or {} if name not in states["own"]]
    if missing:
        raise ArgumentError(
            f"the checkpoint has no state of the generators {listing(missing)}; it has "
            f"{listing(states['own']) or 'none'}. Pass the generators that were passed when the "
            "checkpoint was saved"
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
    """Suppresses torch's warning that a process saves or loads without a process group."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled, unavailable or")
        yield


def _rank() -> tuple[int, int]:
    """The number of this rank, and the number of ranks.

    They are the launcher's if torch.distributed is not initialised, because a
    program may load before that.
    """
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    me = current_rank()
    return me.rank, me.world_size
