"""Writes one rank's part of a Trace.  Called by the recorder, inside the ranks.

A crashed trace stays readable because of the order of writes: a payload file is complete and has
its final name before the first event that refers to it is appended.
"""

from __future__ import annotations

import errno
import functools
import importlib.metadata
import os
import platform
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt
import torch
import xxhash

from pytest_trainsafe.compat.autograd import inside_transform, outside_transforms
from pytest_trainsafe.core.layout import REPLICATED, Layout
from pytest_trainsafe.core.rungs.arithmetic import Arithmetic
from pytest_trainsafe.core.rungs.floating import FLOATING
from pytest_trainsafe.core.tensor_id import INITIAL, TensorId
from pytest_trainsafe.core.untrusted import read_file
from pytest_trainsafe.core.usage import shown
from pytest_trainsafe.errors import TrainsafeError
from pytest_trainsafe.trace.run_spec import RunSpec
from pytest_trainsafe.trace.schema import (
    MAX_MANIFEST,
    Manifest,
    Stored,
    TensorEvent,
    end_event,
    manifest_hash,
)
from pytest_trainsafe.trace.tensors.payload import SKETCHES, PendingTensor, encode
from pytest_trainsafe.trace.tensors.sketch import COLUMNS, ROWS, SIZE, Sketcher
from pytest_trainsafe.trace.tensors.snapshot import (
    Shape,
    TensorSnapshot,
    as_array,
    of_values,
    outside_modes,
)

#: Bytes of tensors that are buffered before a payload file is written.  A small buffer reuses
#: memory that the allocator already has: with 16 MiB, recording a step of width 256 takes 0.8 to
#: 0.95 times as long as with 64 MiB.
FLUSH_BYTES = 16 * 2**20

#: Bytes of parts of a payload file that one call writes together; longer parts are not copied.
_BUFFER = 2**16

#: Maximum number of tensors in a payload file; keeps its header below the format's limit (100 MB).
MAX_ENTRIES = 2**19


class TraceWriteError(TrainsafeError):
    """A trace could not be written; the message names the file and what to do."""


class RankWriter:
    """Appends events and tensors to `directory/rank{rank}`; `close()` marks the part complete.

    After a failed write the writer rejects every call, so that no End event, which marks a part
    complete, follows lost events.
    Tensors are copied when they are added, so later changes are not recorded.
    With a `sketcher`, the values of only a few tensors are kept: small tensors, those in `keep`,
    decisions (what a module chose, such as a router's experts), and inputs that are not floating
    point.  Other tensors are sketched, unless their layout does not fit their shape.  `numbers` is
    the arithmetic of the rung, which encodes the values.
    """

    def __init__(
        self,
        directory: Path,
        rank: int,
        sketcher: Sketcher | None = None,
        keep: frozenset[TensorId] = frozenset(),
        numbers: Arithmetic = FLOATING,
        enclosed: bool = False,
    ) -> None:
        self.directory = Path(directory) / f"rank{rank}"
        self.rank = rank
        self._events = self.directory / "events.jsonl"
        self._encoder = msgspec.json.Encoder()
        self._unwritten: list[msgspec.Struct] = []
        self._count = 0
        self._files = 0
        self._pending: list[PendingTensor] = []
        self._pending_bytes = 0
        self._stored: dict[tuple[str, torch.dtype, Shape], tuple[str, str]] = {}
        self._sketcher = sketcher
        self._keep = keep
        self._numbers = numbers
        self._enclosed = enclosed
        self._sketches: list[npt.NDArray[np.float64]] = []
        self._sketched: dict[tuple[str, torch.dtype, Shape, Layout], TensorSnapshot] = {}
        #: The index of each pending sketch, by the `id()` of its array.
        self._placed: dict[int, int] = {}
        #: Hashes of the written lines, and of the sketches in each file.
        self._hash = xxhash.xxh3_128()
        self._hashes: dict[str, str] = {}
        self._failure: str | None = None
        _writing(self._events, 0, lambda: self.directory.mkdir(0o700, parents=True, exist_ok=True))
        if self._events.exists() and self._events.stat().st_size:
            raise TraceWriteError(
                f"{self._events} already holds a trace. Every run needs a directory of its own: "
                "remove this one or choose another."
            )

    def add(self, event: msgspec.Struct) -> None:
        """Appends an event that carries no tensor."""
        self._check()
        self._unwritten.append(event)
        self._count += 1

    def add_tensor(
        self,
        id: TensorId,
        tensor: torch.Tensor,
        layout: Layout = REPLICATED,
        layout_source: str = "default",
        master_copy: bool = False,
    ) -> TensorEvent:
        """Records a rank-local tensor under `id`, which must be new, and returns its event.

        Takes any dtype, shape, stride and device.  Records the local tensor of a DTensor, and
        the dense form of a sparse tensor.  `layout_source` and `master_copy` are explained in
        `TensorEvent`.
        """
        snapshot = self.snapshot(id, tensor, layout)
        return self.add_snapshot(id, snapshot, layout, layout_source, master_copy)

    def snapshot(self, id: TensorId, tensor: torch.Tensor, layout: Layout) -> TensorSnapshot:
        """A snapshot of the tensor, which `add_snapshot` can record later."""
        if not self._enclosed and not inside_transform():  # as nearly always
            return self._snapshot(id, tensor, layout)
        with outside_transforms(), outside_modes(self._enclosed):
            return self._snapshot(id, tensor, layout)

    def _snapshot(self, id: TensorId, tensor: torch.Tensor, layout: Layout) -> TensorSnapshot:
        host = _on_host(id, tensor)
        shape = tuple(host.shape)
        kept = host.nbytes <= SIZE or _always_kept(id, host) or (self._keep and id in self._keep)
        if self._sketcher is not None and not kept:
            array = as_array(host)
            digest = xxhash.xxh3_128_hexdigest(array.data)
            content = digest, host.dtype, shape, layout
            known = self._sketched.get(content)
            if known is not None:
                return known
            made = self._sketcher.sketch(host, layout, exact=id.step == INITIAL, array=array)
            if made is not None:
                snapshot = TensorSnapshot(host.dtype, shape, digest, None, *made)
                self._sketched[content] = snapshot
                return snapshot
        return of_values(host, self._numbers)

    def add_snapshot(
        self,
        id: TensorId,
        snapshot: TensorSnapshot,
        layout: Layout = REPLICATED,
        layout_source: str = "default",
        master_copy: bool = False,
    ) -> TensorEvent:
        """Records a snapshot under `id`, which must be new, and returns its event."""
        self._check()
        file, key, index, encoded = "", "", -1, snapshot.encoded
        if snapshot.data is None:
            file, index = self._hold_sketch(snapshot)
        else:
            dtype, shape = snapshot.stored
            content = snapshot.digest, dtype, shape
            known = self._stored.get(content)
            file, key = known or self._hold(dtype, shape, snapshot.data)
            self._stored[content] = (file, key)
        event = TensorEvent(
            self._count,
            id,
            _name(snapshot.dtype),
            snapshot.shape,
            snapshot.digest,
            layout,
            layout_source,
            file,
            key,
            index,
            snapshot.logical,
            master_copy,
            encoded and Stored(_name(encoded[0]), encoded[1]),
        )
        self._unwritten.append(event)
        self._count += 1
        if self._pending_bytes >= FLUSH_BYTES or len(self._pending) >= MAX_ENTRIES:
            self.flush()
        return event

    def _hold(self, dtype: torch.dtype, shape: Shape, data: bytes) -> tuple[str, str]:
        key = str(len(self._pending))
        self._pending.append(PendingTensor(dtype, shape, data))
        self._pending_bytes += len(data)
        return _payload_name(self._files), key

    def _hold_sketch(self, snapshot: TensorSnapshot) -> tuple[str, int]:
        """Returns the file of a sketch and its index in the file; equal tensors share a sketch."""
        assert snapshot.sketch is not None
        index = self._placed.setdefault(id(snapshot.sketch), len(self._sketches))
        if index == len(self._sketches):
            self._sketches.append(snapshot.sketch)
        return _payload_name(self._files), index

    def flush(self) -> None:
        """Writes everything pending: first the tensors and sketches as a file, then the events."""
        self._check()
        try:
            if self._pending or self._sketches:
                self._write_payload()
            if self._unwritten:
                lines = self._lines()
                self._hash.update(lines)
                _append(self._events, lines)
                self._unwritten.clear()
        except TraceWriteError as error:
            self._failure = str(error)
            raise

    def _lines(self) -> bytes:
        try:
            return self._encoder.encode_lines(self._unwritten)
        except UnicodeEncodeError as error:
            raise TraceWriteError(
                f"{self._events} cannot hold the text {shown(error.object)}, which UTF-8 cannot "
                "encode (it contains a lone surrogate). Change the name in the program"
            ) from None

    def close(self) -> None:
        """Writes everything pending and the End event, which marks this rank's part complete."""
        self.flush()
        manifest = manifest_hash(_manifest_of(self.directory.parent))
        self.add(end_event(self._hash, self._count, self._hashes, manifest))
        self.flush()
        self._failure = f"{self.directory} was closed; nothing can be added to it"

    def _write_payload(self) -> None:
        name = _payload_name(self._files)
        entries = {str(index): held for index, held in enumerate(self._pending)}
        if self._sketches:
            data = b"".join(sketch.data for sketch in self._sketches)
            entries[SKETCHES] = PendingTensor(
                torch.float64, (len(self._sketches), ROWS, COLUMNS), data
            )
            self._hashes[name] = xxhash.xxh3_128_hexdigest(data)
        _replace(self.directory / name, encode(entries))
        self._sketches.clear()
        self._sketched.clear()
        self._placed.clear()
        self._files += 1
        self._pending.clear()
        self._pending_bytes = 0

    def _check(self) -> None:
        if self._failure is not None:
            raise TraceWriteError(self._failure)


def _manifest_of(directory: Path) -> bytes:
    """The content of the trace's manifest, or b"" for an incomplete trace that has none."""
    path = directory / "manifest.json"
    try:
        return read_file(path, max_bytes=MAX_MANIFEST)
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise TraceWriteError(f"cannot read {path}: {error.strerror}") from error


def manifest_of(spec: RunSpec, device: str) -> Manifest:
    """The manifest of a Run that this process starts."""
    return Manifest(
        spec=spec,
        world_size=spec.point.world_size,
        device=device,
        versions={
            "python": platform.python_version(),
            "torch": str(torch.__version__),
            "pytest-trainsafe": importlib.metadata.version("pytest-trainsafe"),
        },
    )


def write_manifest(directory: Path, manifest: Manifest) -> None:
    """Writes `directory/manifest.json` atomically."""
    path = Path(directory) / "manifest.json"
    # Mode 700 also for traces that are copied elsewhere: they hold the user's tensors.
    _writing(path, 0, lambda: path.parent.mkdir(mode=0o700, parents=True, exist_ok=True))
    _replace(path, [msgspec.json.format(msgspec.json.encode(manifest), indent=2), b"\n"])


def _always_kept(id: TensorId, host: torch.Tensor) -> bool:
    """Whether a tensor's values are kept whatever its size.

    A Run that replays a decision needs its values.  A judge needs the values of token inputs, to
    find out whether they equal the reference's in some layout.
    """
    return id.kind == "decision" or (id.kind == "input" and not host.is_floating_point())


def _on_host(id: TensorId, tensor: torch.Tensor) -> torch.Tensor:
    if tensor.device.type == "meta":
        raise TraceWriteError(
            f"{id} is a tensor on the meta device and has no values to record. "
            "Materialise the model (`model.to_empty(device=...)`) before it is watched."
        )
    local = tensor.detach() if tensor.requires_grad else tensor
    plain = type(local) is torch.Tensor and local.is_cpu and local.layout is torch.strided
    if plain and not (local.is_neg() or local.is_conj()):
        return local.contiguous()
    if hasattr(local, "to_local"):
        local = local.to_local()
    if local.layout != torch.strided:
        local = local.to_dense()
    return local.resolve_conj().resolve_neg().cpu().contiguous()


@functools.cache
def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


@functools.lru_cache(maxsize=4)
def _payload_name(number: int) -> str:
    return f"payload-{number:05d}.safetensors"


def _replace(path: Path, parts: Sequence[bytes]) -> None:
    partial = path.with_name(path.name + ".partial")

    def write() -> None:
        try:
            with partial.open("wb", buffering=_BUFFER) as file:
                file.writelines(parts)
            partial.replace(path)
        except OSError:
            partial.unlink(missing_ok=True)  # frees space for the error report
            raise

    _writing(path, sum(map(len, parts)), write)


def _append(path: Path, data: bytes) -> None:
    def write() -> None:
        with path.open("ab", buffering=0) as file:
            view = memoryview(data)
            while view:
                view = view[os.write(file.fileno(), view) :]

    _writing(path, len(data), write)


def _writing(path: Path, size: int, write: Callable[[], object]) -> None:
    try:
        write()
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            reason = "no space left on device"
        else:
            reason = error.strerror or str(error)
        raise TraceWriteError(
            f"cannot write {path} ({size} bytes): {reason}. The trace is incomplete. "
            "Free some space, or let pytest write elsewhere (--basetemp, or TMPDIR)."
        ) from error
