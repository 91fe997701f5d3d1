"""Collective: one entry of a ledger, the record of the collectives that a rank calls.

Ranks write the entries; `ledger_check` compares them.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from pytest_trainsafe.core.untrusted import MALFORMED, read_file
from pytest_trainsafe.errors import TrainsafeError


class Collective(msgspec.Struct, frozen=True, omit_defaults=True, tag="collective"):
    """One call of a collective or point-to-point operation by one rank.

    `group` is the process group's name, `ranks` its members' global ranks.
    `op` is the public name ("all_reduce"); equivalent variants share one ("isend" is "send").
    `reduce` is the ReduceOp, `root` the global rank of src or dst, `peer` the global rank at the
    other end of a send or recv (None: any source), and `tag` its tag.
    `detail` describes other arguments that must be equal on all ranks.
    `shape` and `dtype` are those of the input tensor; None and "" unless there is exactly one.
    `gives[i]` and `takes[i]` count the elements sent to and received from the group's rank i.
    `name` is the tensor's name from `ledger.name_tensor`; `site` is the caller's file:line outside
    of torch, and `user` the line of the user's code if the caller is in a package.
    `asynchronous` is whether the caller passed a true `async_op`.
    """

    group: str
    ranks: tuple[int, ...]
    op: str
    site: str
    user: str = ""
    reduce: str = ""
    root: int | None = None
    peer: int | None = None
    tag: int = 0
    dtype: str = ""
    shape: tuple[int, ...] | None = None
    gives: tuple[int, ...] | None = None
    takes: tuple[int, ...] | None = None
    name: str = ""
    detail: str = ""
    asynchronous: bool = False

    @property
    def is_p2p(self) -> bool:
        """Whether this is a send or a recv."""
        return self.op in ("send", "recv")

    @property
    def numel(self) -> int | None:
        """The number of elements of the input tensor.

        None if the call has no input tensor, such as a barrier, or several, such as
        "all_reduce_coalesced".
        """
        if self.shape is None:
            return None
        product = 1
        for size in self.shape:
            product *= size
        return product

    def __str__(self) -> str:
        text = self.op
        if self.reduce:
            text += f"({self.reduce})"
        if self.detail:
            text += f"({self.detail})"
        if self.root is not None:
            text += f" from rank {self.root}" if self.op in FROM_ROOT else f" to rank {self.root}"
        if self.is_p2p:
            other = "any rank" if self.peer is None else f"rank {self.peer}"
            text += f" to {other}" if self.op == "send" else f" from {other}"
        if self.shape is not None:
            text += f" of {'x'.join(map(str, self.shape)) or 'one'} {self.dtype}"
        if self.tag:
            text += f" with tag {self.tag}"
        if self.name:
            text += f" ({self.name})"
        return f"{text} at {self.line}"

    @property
    def line(self) -> str:
        """The line of the call, and that of the user's code if the caller is in a package."""
        return f"{self.site} (from {self.user})" if self.user else self.site


#: Operations that move data from the root to the other ranks.
FROM_ROOT = ("broadcast", "scatter", "broadcast_object_list", "scatter_object_list")


class Finished(msgspec.Struct, frozen=True, tag="finished"):
    """The rank's program returned; no collective follows."""


class LedgerError(TrainsafeError):
    """A rank's ledger cannot be read.

    The message says only why; the code that reports it adds the rank.
    """


#: Maximum bytes of a ledger: some millions of calls.
MAX_LEDGER = 2**30


def read_ledger(path: Path) -> tuple[list[Collective], bool]:
    """A rank's collectives, and whether its program returned; ignores an incomplete last line.

    Raises LedgerError if the file is invalid, because the rank's program can write anything to it.
    """
    try:
        # Check links from the group's folder down, because a rank can replace its own folder.
        content = read_file(path, below=path.parent.parent, max_bytes=MAX_LEDGER)
    except FileNotFoundError:
        return [], False
    except OSError as error:
        raise LedgerError(error.strerror or str(error)) from error
    decoder = msgspec.json.Decoder(Collective | Finished)
    entries: list[Collective | Finished] = []
    try:
        for line in content.split(b"\n")[:-1]:
            entries.append(decoder.decode(line))
    except MALFORMED as error:
        raise LedgerError(f"line {len(entries) + 1} is damaged: {error}") from error
    finished = bool(entries) and isinstance(entries[-1], Finished)
    return [entry for entry in entries if isinstance(entry, Collective)], finished
