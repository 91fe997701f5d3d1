"""Flight: what torch's own flight recorder saw of one rank's collectives, as data.

Written in the ranks by `flight_save`, read here, judged by `flight_check`.  The recorder stands
below Python: it also sees the collectives that C++ issues by itself, such as DDP's gradient
buckets, which the ledger does not.  It does not tell the ReduceOp, the root, or who called;
it sees neither sends nor recvs, and gloo's reduce_scatter as the all_reduce it is made of.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from itertools import pairwise
from math import prod
from pathlib import Path

import msgspec

from pytest_trainsafe.core.untrusted import MALFORMED, read_file

#: A process group: its name, and its members' global ranks.
GroupKey = tuple[str, tuple[int, ...]]

_GLOO = "gloo:"

#: Most bytes of a record: the recorder keeps some thousand entries.
MOST_FLIGHT = 2**27


class Issued(msgspec.Struct, frozen=True):
    """One collective that a rank issued; the fields are named as torch names them.

    `collective_seq_id` counts within the group, and is the tag by which gloo pairs the ranks'
    calls.  `retired` says that it is over on this rank.
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
        """The operation as gloo names it: "all_reduce"."""
        return self.profiling_name.removeprefix(_GLOO)

    @property
    def sizes(self) -> tuple[tuple[int, ...], ...]:
        """The shapes of what every rank passes; in a scatter only the root has an input."""
        return self.output_sizes if self.op == "scatter" else self.input_sizes

    @property
    def dtypes(self) -> tuple[str, ...]:
        """The dtypes of the same tensors, each once, in torch's Python names."""
        dtypes = self.output_dtypes if self.op == "scatter" else self.input_dtypes
        return tuple(dict.fromkeys(_DTYPES.get(name, name.lower()) for name in dtypes))

    @property
    def numel(self) -> int:
        """Elements of the same tensors, together."""
        return sum(map(prod, self.sizes))

    def __str__(self) -> str:
        text = f"{self.op} #{self.collective_seq_id}"
        if self.sizes:
            shapes = " and ".join("x".join(map(str, size)) or "one" for size in self.sizes)
            text += f" of {shapes} {' and '.join(self.dtypes)}"
        return text


#: torch's C++ names that are not the Python name with a capital letter (BFloat16 is)
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

#: What a rank issued in each of its groups, oldest first.
Flight = Mapping[GroupKey, list[Issued]]


class _Dump(msgspec.Struct):
    """torch's dump; `entries` is absent where there are none."""

    entries: list[Issued] = []


class _Saved(msgspec.Struct):
    """The file: torch's dump, and the members of each group by its name.

    None stands for a name that several groups bore, one after another.
    """

    groups: dict[str, tuple[int, ...] | None]
    recorder: _Dump


def read_flight(path: Path) -> Flight | None:
    """What the rank issued; None where it left no record, or one of a form that we do not know.

    Left out are groups of which the record cannot be relied on: those of another backend, those
    whose name was used twice, and those whose last entries the recorder may have overwritten.
    """
    try:
        data = read_file(path, below=path.parent.parent, most=MOST_FLIGHT)
        saved = msgspec.json.decode(data, type=_Saved)
    except (OSError, *MALFORMED):
        return None
    by_name: dict[str, list[Issued]] = defaultdict(list)
    for entry in saved.recorder.entries:
        if not entry.is_p2p:
            by_name[entry.process_group[0]].append(entry)
    # the recorder is a ring: it overwrites its oldest entries, so each group's last ones stay
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
