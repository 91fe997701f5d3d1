"""Notes in a trace of outputs that have no logical counterpart at the trace's Point.

Written by the recorder from the annotation `local`, read by the compare judge.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from pytest_trainsafe.core.tensor_id import TensorId

_FLOWS = ("activation", "activation_grad")


def note_of(module: str, place: str) -> str:
    """The note for a key path in a module's output: "output", "output.0", "output_grad.0"."""
    if place == "output":
        return f"activation {module}"
    return f"{'gradient' if _is_gradient(place) else 'place'} {module}.{place}"


def is_local(id: TensorId, noted: Collection[str]) -> bool:
    """Whether a tensor has no logical counterpart, according to the ranks' notes."""
    return any(note in noted for note in _notes_of(id))


def covers(place: str, name: str, gradient: bool) -> bool:
    """Whether a local key path includes the output `name`, or the gradient that reaches it."""
    if _is_gradient(place):
        if not gradient:
            return False
        place = place.replace("output_grad", "output", 1)
    return name == place or name.startswith(f"{place}.")


def _is_gradient(place: str) -> bool:
    return place.split(".", 1)[0] == "output_grad"


def _notes_of(id: TensorId) -> Iterator[str]:
    """The notes that make a tensor local: for the tensor itself, or for what contains it."""
    if id.kind not in _FLOWS:
        yield f"{id.kind} {id.path}"
        return
    steps = id.name.split(".")
    for end in range(1, len(steps) + 1):
        place = ".".join(steps[:end])
        yield note_of(id.module, place)
        if id.kind == "activation_grad":
            yield note_of(id.module, place.replace("output", "output_grad", 1))
