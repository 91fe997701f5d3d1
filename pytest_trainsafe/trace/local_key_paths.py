"""Notes that name the local tensors of a trace: those without a counterpart in the reference.

The annotation `local` declares that a module's output is local at Points that use certain axes.
The recorder writes the notes.  The judges read them, and do not report that these tensors lack a
counterpart.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from pytest_trainsafe.core.tensor_id import TensorId, gradient_place, is_gradient_place

_FLOWS = ("activation", "activation_grad")


def note_of(module: str, key_path: str) -> str:
    """The note for a key path of a module, such as "output", "output.0" or "output_grad.0"."""
    if key_path == "output":
        return f"activation {module}"
    return f"{'gradient' if is_gradient_place(key_path) else 'place'} {module}.{key_path}"


def is_local(id: TensorId, noted: Collection[str]) -> bool:
    """Whether a tensor is local according to `noted`, the notes of the ranks."""
    return any(note in noted for note in _notes_of(id))


def covers(key_path: str, name: str, gradient: bool) -> bool:
    """Whether the entry `key_path` of the annotation `local` includes the output `name`.

    If `gradient` is true, returns whether it includes the gradient of this output.
    """
    if is_gradient_place(key_path):
        if not gradient:
            return False
        key_path = key_path.replace("_grad", "", 1)
    return name == key_path or name.startswith(f"{key_path}.")


def _notes_of(id: TensorId) -> Iterator[str]:
    """Yields the notes that can declare a tensor local; one of them is enough.

    Each note names the tensor itself or an output that contains the tensor.
    """
    if id.kind not in _FLOWS:
        yield f"{id.kind} {id.path}"
        return
    steps = id.name.split(".")
    for end in range(1, len(steps) + 1):
        key_path = ".".join(steps[:end])
        yield note_of(id.module, key_path)
        if id.kind == "activation_grad":
            yield note_of(id.module, gradient_place(key_path))
