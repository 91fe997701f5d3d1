"""Validates a checkpoint before any of it is loaded.

Called by `ReplayCheckpoint.load`. Each check raises ReplayError, which names the file.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pytest_trainsafe.core.usage import listing, shown
from pytest_trainsafe.errors import ReplayError
from pytest_trainsafe.judges.replay.checkpoints.events import file
from pytest_trainsafe.judges.replay.checkpoints.events.file import Header
from pytest_trainsafe.judges.replay.checkpoints.instrument.generators import Source


def require_ours(path: Path, header: Header, program: str, rank: int, world_size: int) -> None:
    """Raises unless this program saved the checkpoint, on this rank and with this world size."""
    if header.program != program:
        raise ReplayError(
            f"{path} is a checkpoint of the program {shown(header.program)}, but this program is "
            f"{shown(program)}. Load a checkpoint of this program"
        )
    if header.world_size != world_size:
        raise ReplayError(
            f"{path} was saved with world size {header.world_size}, but this run has world size "
            f"{world_size}. The states of random generators are saved for each rank, so start "
            f"{header.world_size} ranks"
        )
    if header.rank != rank:
        raise ReplayError(
            f"{path} was saved by rank {header.rank}, but this is rank {rank}: the file was "
            "renamed. Save the checkpoint again"
        )


def require_one_step(folder: Path, header: Header) -> None:
    """Raises unless all files of ranks that this rank can read were saved before the same step."""
    for other in range(header.world_size):
        path = file.file_of(folder, other)
        step = header.step if other == header.rank else file.step_of(path)
        if step not in (None, header.step):
            raise ReplayError(
                f"{path} was saved before step {step}, but the file of rank {header.rank} was "
                f"saved before step {header.step}: not all ranks finished saving. Load an earlier "
                "checkpoint"
            )


def require_same_parts(
    path: Path,
    header: Header,
    found: Mapping[str, Source],
    states: Iterable[str],
    regenerated: Iterable[str],
) -> None:
    """Raises unless the checkpoint has the generators, states and functions of this program."""
    kinds = {name: source.kind for name, source in found.items()}
    held: dict[str, tuple[Iterable[str], Iterable[str]]] = {
        "generators": (header.kinds, kinds),
        "states": (header.states, states),
        "regenerated functions": (header.regenerated, regenerated),
    }
    if set(header.generators) != set(header.kinds):
        raise ReplayError(
            f"{path} is damaged: it does not have a state and a kind for each of its generators. "
            "Load an earlier checkpoint"
        )
    for what, (saved, own) in held.items():
        if missing := sorted(set(saved) - set(own)):
            raise ReplayError(
                f"{path} has the {what} {listing(missing)}, which this program did not give "
                f"to ReplayCheckpoint. Pass the same {what} as when the file was saved"
            )
        # A GPU that came into use later was not drawn from when the checkpoint was saved.
        given = {name for name in own if not name.startswith("torch cuda:")}
        if new := sorted(given - set(saved)):
            raise ReplayError(
                f"{path} lacks the {what} {listing(new)}, which this program gives to "
                "ReplayCheckpoint: the file was saved by an earlier version of the program. Run "
                "from the start"
            )
    for name, kind in kinds.items():
        if header.kinds.get(name, kind) != kind:
            raise ReplayError(
                f"{path} has a generator {shown(name)} of kind {header.kinds[name]}, but in this "
                f"program it is of kind {kind}. Pass a generator of kind {header.kinds[name]} as "
                f"{shown(name)} to ReplayCheckpoint"
            )


def require_valid(path: Path, found: Mapping[str, Source], states: Mapping[str, Any]) -> None:
    """Raises unless each of these states can be restored to the generator of its name."""
    for name, state in states.items():
        fault = "there is no such generator" if name not in found else found[name].fault(state)
        if fault:
            raise ReplayError(
                f"{path}: the generator {shown(name)} cannot load its saved state ({fault}). Use "
                "the releases of torch and NumPy that saved the file"
            )
