"""Flight: the collectives of one rank, as torch's flight recorder recorded them.

Written in the ranks by `flight_save`, read here, checked by `flight_check`.  The recorder works
below Python, so unlike the ledger it sees collectives that C++ issues, such as DDP's gradient
buckets.  It does not record the ReduceOp, the root, or the caller; it sees neither sends nor
recvs, and records gloo's reduce_scatter as the all_reduce that implements it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from itertools import pairwise
from math import prod
from pathlib import Path

import msgspec

from pytest_trainsafe.core.prepared import prepared
from pytest_trainsafe.core.untrusted import MALFORMED, read_file

#: A process group: its name, and its members' global ranks.
GroupKey = tuple[str, tuple[int, ...]]

_GLOO = "gloo:"

#: Maximum bytes of a record: the recorder keeps a few thousand entries.
MAX_FLIGHT = 2**27


class Issued(msgspec.Struct, frozen=True):
    """One collective that a rank issued; the fields have torch's names.

    `collective_seq_id` counts within the group; gloo uses it as the tag that pairs the ranks'
    calls.  `retired` means that the collective has completed on this rank.
    """

    record_id: int
    pg_id: int
    process_group: tuple[str, str]
    collective_seq_id: int
    profiling_name: str
    input_sizes: tuple[tuple[int, ...], ...]
    output_sizes: tuple[tuple[int, ...], ...]
    input_dtypes: tuple[str, ...]
    output_dtypes: tuple[str, ...]
    retired: bool
    is_p2p: bool = False

    @property
    def op(self) -> str:
        """The operation's name in gloo, such as "all_reduce"."""
        return self.profiling_name.removeprefix(_GLOO)

    @property
    def sizes(self) -> tuple[tuple[int, ...], ...]:
        """The shapes of the inputs; in a scatter, where only root has inputs, those of the outputs.

        Every rank of the group passes these tensors.
        """
        return self.output_sizes if self.op == "scatter" else self.input_sizes

    @property
    def dtypes(self) -> tuple[str, ...]:
        """The distinct dtypes of the inputs (in a scatter, of the outputs), such as "float32"."""
        dtypes = self.output_dtypes if self.op == "scatter" else self.input_dtypes
        return tuple(dict.fromkeys(_DTYPES.get(name, name.lower()) for name in dtypes))

    @property
    def numel(self) -> int:
        """The total number of elements of the inputs (in a scatter, of the outputs)."""
        return sum(map(prod, self.sizes))

    def __str__(self) -> str:
        text = f"{self.op} #{self.collective_seq_id}"
        if self.sizes:
            shapes = " and ".join("x".join(map(str, size)) or "one" for size in self.sizes)
            text += f" of {shapes} {' and '.join(self.dtypes)}"
        return text


#: torch's C++ dtype names that are not just the capitalised Python names (as BFloat16 is).
_DTYPES = {
    "Byte": "uint8",
    "Char": "int8",
    "Short": "int16",
    "Int": "int32",
    "Long": "int64",
    "Half": "float16",
    "Float": "float32",
    "Double": "float64",
    "ComplexHalf": "complex32",
    "ComplexFloat": "complex64",
    "ComplexDouble": "complex128",
}

#: The collectives that a rank issued in each of its groups, oldest first.
Flight = Mapping[GroupKey, list[Issued]]


class _Dump(msgspec.Struct):
    """torch's dump; `entries` is missing if there are none."""

    entries: list[Issued] = []


@prepared
class _Saved(msgspec.Struct):
    """The file: torch's dump, and the members of each group by its name.

    The members are None for a name that several groups had, one after another.
    """

    groups: dict[str, tuple[int, ...] | None]
    recorder: _Dump


def read_flight(path: Path) -> Flight | None:
    """The collectives that the rank issued; None without a record, or if its format is unknown.

    Excludes groups whose record is unreliable: those of another backend, those whose name was
    used twice, and those whose last entries the recorder may have overwritten.
    """
    try:
        data = read_file(path, below=path.parent.parent, max_bytes=MAX_FLIGHT)
        saved = msgspec.json.decode(data, type=_Saved)
    except (OSError, *MALFORMED):
        return None
    by_name: dict[str, list[Issued]] = defaultdict(list)
    for entry in saved.recorder.entries:
        if not entry.is_p2p:
            by_name[entry.process_group[0]].append(entry)
    # The recorder is a ring that overwrites its oldest entries; the last ones of a group remain.
    full = bool(saved.recorder.entries) and saved.recorder.entries[0].record_id > 0
    flight = {}
    for name, ranks in saved.groups.items():
        issued = sorted(by_name[name], key=lambda entry: entry.collective_seq_id)
        if ranks is not None and _reliable(issued) and not (full and not issued):
            flight[name, ranks] = issued
    return flight


def _reliable(issued: list[Issued]) -> bool:
    one_group = len({entry.pg_id for entry in issued}) <= 1
    counted = all(a.collective_seq_id < b.collective_seq_id for a, b in pairwise(issued))
    return one_group and counted and all(e.profiling_name.startswith(_GLOO) for e in issued)
