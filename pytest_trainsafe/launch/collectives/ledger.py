"""The ledger: a file in which each rank records every collective just before it calls it.

`wrap` replaces the public functions of `torch.distributed` by wrappers that write an entry first,
once `install` has opened the file of a rank.  A program may bind these functions when it is
imported; so a rank wraps before that, and the fork server before it imports what programs use.
gloo and NCCL match calls only by their order, and some mismatches give wrong results or a wait
without an error; so `ledger_check` compares the entries of all ranks.  Collectives that C++ issues
itself (the gradient buckets of DDP) are not seen here but in `flight`, which records less of each.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import inspect
import os
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from pytest_trainsafe.compat.distributed.held_work import HeldWork
from pytest_trainsafe.compat.distributed.process_groups import default_group, functional_collectives
from pytest_trainsafe.core.code_files import calling_lines
from pytest_trainsafe.core.rank import current_rank
from pytest_trainsafe.core.rank.state import keep_per_rank
from pytest_trainsafe.launch.collectives.blocked import UNKNOWN, Blocked
from pytest_trainsafe.launch.collectives.collective import Collective, Finished
from pytest_trainsafe.launch.collectives.ledger_describe import DESCRIBE, FUNCTIONAL, Detail


class Ledger:
    """The open ledger of this rank; its `blocked` file shows which call has not returned."""

    def __init__(self, path: Path, blocked: Blocked) -> None:
        self.path = path
        self.blocked = blocked
        #: How many calls have been recorded.
        self.calls = 0
        self._works: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self.fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._pid = os.getpid()
        self._encode = msgspec.json.Encoder().encode
        self._members: dict[str, tuple[int, ...]] = {}
        #: The line of the last recorded call.
        self.site = ""
        #: Functions that are called with each recorded call.
        self.listeners: list[Callable[[Collective], None]] = []

    def write(self, entry: Collective | Finished) -> None:
        """Appends one entry, unbuffered: it must be on file even if the call never returns."""
        if os.getpid() != self._pid:  # a process that the program forked is not a rank
            return
        try:
            os.write(self.fd, self._encode(entry) + b"\n")
        except OSError as error:
            what = os.strerror(error.errno or errno.EIO)
            raise OSError(
                error.errno,
                f"{what}: the rank cannot write the ledger of collectives; the folder of this file "
                "must be writable and have free space",
                str(self.path),
            ) from None

    def record(self, op: str, detail: Detail, asynchronous: bool = False) -> int:
        """Records one call and returns its number, counted from 1.

        Ignores a call on a group that does not contain this rank, and returns UNKNOWN for it.
        """
        group = detail.group if detail.group is not None else default_group()
        if group is dist.GroupMember.NON_GROUP_MEMBER:
            return UNKNOWN
        name = str(group.group_name)
        ranks = self._members.get(name)
        if ranks is None:
            ranks = self._members[name] = tuple(dist.get_process_group_ranks(group))
        tensor = detail.tensor
        site, user = calling_lines()
        self.site = site
        entry = Collective(
            group=name,
            ranks=ranks,
            op=op,
            site=site,
            user=user,
            reduce=detail.reduce,
            root=_global(ranks, detail.root, detail.group_root),
            peer=_global(ranks, detail.peer, detail.group_peer),
            tag=detail.tag,
            dtype="" if tensor is None else str(tensor.dtype).removeprefix("torch."),
            shape=None if tensor is None else tuple(tensor.shape),
            gives=_sizes(detail.gives, len(ranks)),
            takes=_sizes(detail.takes, len(ranks)),
            name="" if tensor is None else _name_of(tensor),
            detail=detail.detail,
            asynchronous=asynchronous,
        )
        self.write(entry)
        self.calls += 1
        for listener in self.listeners:
            listener(entry)
        return self.calls

    def issued(self, work: Any, call: int) -> None:
        """Stores the number of the call that returned this Work object, for `call_of`."""
        if isinstance(work, c10d.Work):
            self._works[work] = call

    def call_of(self, work: Any) -> int:
        """The number of the call that returned this Work object; UNKNOWN if it is not recorded."""
        return self._works.get(work, UNKNOWN)

    def join(self, entry: Collective) -> int:
        """Records a call without telling listeners; returns its number."""
        self.write(entry)
        self.calls += 1
        return self.calls

    def finish(self) -> None:
        """Records that the program returned."""
        self.write(Finished())


def _global(ranks: tuple[int, ...], rank: int | None, in_group: int | None) -> int | None:
    return ranks[in_group] if in_group is not None else rank


def _sizes(sizes: list[int] | int | None, world: int) -> tuple[int, ...] | None:
    if sizes is None:
        return None
    return (sizes,) * world if isinstance(sizes, int) else tuple(sizes)


#: What follows the name of the first tensor in the name of a buffer that begins with it.
AND_MORE = " and more"

#: data pointer -> (the tensor, its number of elements, its name)
_names: dict[int, tuple[weakref.ref[torch.Tensor], int, str]] = {}
keep_per_rank(__name__, "_names", copied=True)


def name_tensor(tensor: torch.Tensor, name: str) -> None:
    """Names this tensor, views of all of it, and buffers that begin with it, in the ledger.

    Ranks that reduce tensors of the same names in different orders are reported.  The tensor is
    not kept alive; its name is forgotten with it.
    """
    pointer = tensor.data_ptr()
    if pointer:
        _names[pointer] = (weakref.ref(tensor), tensor.numel(), name)


def _name_of(tensor: torch.Tensor) -> str:
    if not _names:
        return ""
    try:
        pointer = tensor.data_ptr()
    except RuntimeError:  # fake and functional tensors have no memory
        return ""
    named = _names.get(pointer)
    if named is None or named[1] > tensor.numel():
        return ""
    owner = named[0]()
    if owner is None or owner.data_ptr() != pointer:  # the memory was reused
        del _names[pointer]
        return ""
    if named[1] == tensor.numel():
        return named[2]
    return f"{named[2]}{AND_MORE}" if tensor.is_contiguous() else ""


_current: Ledger | None = None
keep_per_rank(__name__, "_current")

#: Whether torch's functions of this process are wrapped.
_wrapped = False


def _as_torch_does(original: Callable[..., Any]) -> Callable[..., Any]:
    return original


#: Makes `init_process_group` out of torch's function; see `connect_by`.
_connect: Callable[[Callable[..., Any]], Callable[..., Any]] = _as_torch_does


def connect_by(make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Makes `init_process_group` of this process call `make(original)` in place of torch's own.

    Also where a module bound the function before, if it was imported after `wrap`.
    """
    global _connect
    _connect = make


def current() -> Ledger:
    """The ledger of this rank; every rank has one, no other process does."""
    assert _current is not None, "no ledger is installed in this process"
    return _current


@contextlib.contextmanager
def following(listener: Callable[[Collective], None]) -> Iterator[None]:
    """Calls `listener` with every collective that this rank records within the `with` block.

    Listeners are called in the order in which they were added.  Does nothing in a process without
    a ledger.
    """
    if _current is None:
        yield
        return
    _current.listeners.append(listener)
    try:
        yield
    finally:
        _current.listeners.remove(listener)


def number_of_call() -> int:
    """The number of the recorded call that this rank makes now; UNKNOWN outside of one."""
    return _current.calls if _current is not None and _within.active else UNKNOWN


def note(
    op: str,
    group: tuple[str, tuple[int, ...]],
    tensors: Sequence[torch.Tensor],
    reduce: str,
    root: int | None,
) -> str:
    """The line of the program that makes a call; for backends in Python.

    Also records the call, unless it is part of one that is recorded: C++ code makes it, such as
    the reducer of DistributedDataParallel.  Listeners only hear of what Python calls.  `group` is
    the group's name and its members; `root` is a number in the group.
    """
    if _current is None:
        return calling_lines()[0]
    if _within.active:
        return _current.site
    tensor = tensors[0] if len(tensors) == 1 else None
    name, ranks = group
    entry = Collective(
        group=name,
        ranks=ranks,
        op=op,
        site=calling_lines()[0],
        reduce=reduce,
        root=None if root is None else ranks[root],
        dtype="" if tensor is None else str(tensor.dtype).removeprefix("torch."),
        shape=None if tensor is None else tuple(tensor.shape),
    )
    _current.join(entry)
    return entry.site


@contextlib.contextmanager
def waiting(work: Any, call: int) -> Iterator[None]:
    """Shows in the file `blocked` that this rank waits in this context for a Work object.

    `call` is the number of the call that made it, if no call that is recorded has returned it.
    """
    if _current is None or _within.active:  # the call itself shows that it waits
        yield
        return
    ledger, known = _current, _current.call_of(work)
    ledger.blocked.enter(call if known == UNKNOWN else known)
    _within.active = True  # a Work may wait for others
    try:
        yield
    finally:
        _within.active = False
        ledger.blocked.leave()


class _Within(threading.local):
    """Whether this thread is inside a recorded call: some collectives call others."""

    active = False


_within = _Within()


def install(path: Path, blocked: Path) -> Ledger:
    """Makes this rank record its collectives in the file `path` from now on.

    The file `blocked` shows the call in which the calling thread, the rank's main one, waits.
    """
    global _current
    ledger = _current = Ledger(path, Blocked(blocked))
    wrap()
    return ledger


def wrap() -> None:
    """Wraps torch's functions, for all ranks of this process; once."""
    global _wrapped
    if _wrapped:
        return
    _wrapped = True
    for public, (op, describe) in DESCRIBE.items():
        original = getattr(c10d, public, None)
        if original is not None:  # the oldest supported torch lacks some of these names
            recorded = _recorded(op, describe, original)
            # Replace it in both modules: torch calls its own functions through the inner one.
            setattr(c10d, public, recorded)
            if hasattr(dist, public):
                setattr(dist, public, recorded)
    c10d.init_process_group = dist.init_process_group = _recorded_join(c10d.init_process_group)
    batch = _recorded_batch(c10d.batch_isend_irecv)
    c10d.batch_isend_irecv = dist.batch_isend_irecv = batch
    for each in (c10d.Work, HeldWork):
        setattr(each, "wait", _recorded_wait(each.wait))  # noqa: B010 - mypy
    functional: Any = functional_collectives()
    if functional is not None:
        _record_functional(functional)


def _record_functional(functional: Any) -> None:
    """Records the functional collectives, which are functions of the module `functional`."""
    for public, (op, describe) in FUNCTIONAL.items():
        original = getattr(functional, public, None)
        if original is not None:
            setattr(functional, public, _recorded(op, describe, original))
    functional.wait_tensor = _recorded_wait_tensor(functional.wait_tensor)


def _recorded(
    op: str, describe: Callable[..., Detail], original: Callable[..., Any]
) -> Callable[..., Any]:
    # Where a caller may pass `async_op` by position.
    place = [*inspect.signature(describe).parameters, "async_op"].index("async_op")

    @functools.wraps(original)
    def recorded(*args: Any, **kwargs: Any) -> Any:
        # Leave the original to the compiler, which recognises it.
        if torch.compiler.is_compiling() or _within.active or _current is None:
            return original(*args, **kwargs)
        detail = None
        with contextlib.suppress(TypeError, AttributeError, ValueError, LookupError, RuntimeError):
            detail = describe(*args, **kwargs)
        if detail is None:
            # torch will reject this call with a better message than ours.  Call it outside of
            # the `except`, so that torch's error is not chained to ours.
            return original(*args, **kwargs)
        ledger = current()
        later = bool(kwargs.get("async_op", args[place] if place < len(args) else False))
        call = ledger.record(op, detail, later) if dist.is_initialized() else UNKNOWN
        _within.active = True
        # A monitored_barrier has a timeout, so it never blocks forever.
        if op != "monitored_barrier":
            ledger.blocked.enter(call)
        try:
            result = original(*args, **kwargs)
        finally:
            _within.active = False
            ledger.blocked.leave()
        ledger.issued(result, call)
        return result

    return recorded


def _recorded_wait(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def wait(self: Any, *args: Any, **kwargs: Any) -> Any:
        # A wait with a timeout never blocks forever.
        if torch.compiler.is_compiling() or args or kwargs:
            return original(self, *args, **kwargs)
        with waiting(self, UNKNOWN):
            return original(self)

    return wait


def _recorded_wait_tensor(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def wait_tensor(tensor: Any) -> Any:
        if torch.compiler.is_compiling() or _within.active or _current is None:
            return original(tensor)
        ledger = current()
        ledger.blocked.enter(UNKNOWN)
        try:
            return original(tensor)
        finally:
            ledger.blocked.leave()

    return wait_tensor


def _recorded_batch(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def recorded(p2p_op_list: list[Any]) -> Any:
        if _current is None:
            return original(p2p_op_list)
        ledger, calls = current(), []
        for each in p2p_op_list:
            op = "send" if each.op.__name__ == "isend" else "recv"
            detail = Detail(each.tensor, each.group, peer=each.peer, tag=each.tag)
            calls.append(ledger.record(op, detail))
        _within.active = True
        try:
            works = original(p2p_op_list)
        finally:
            _within.active = False
        if len(works) == len(calls):  # a backend that coalesces returns one work for all
            for work, call in zip(works, calls, strict=True):
                ledger.issued(work, call)
        return works

    return recorded


def _recorded_join(original: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(original)

    @functools.wraps(original)
    def recorded(*args: Any, **kwargs: Any) -> Any:
        join = _connect(original)
        if _current is None:
            return join(*args, **kwargs)
        # Record the world size: ranks that disagree on it wait for each other forever.
        ledger, world = current(), current_rank().world_size
        given = signature.bind_partial(*args, **kwargs).arguments
        size = given.get("world_size", -1)
        backend = given.get("backend") or "the default backend"
        call = ledger.join(
            Collective(
                group="",
                ranks=tuple(range(world)),
                op="init_process_group",
                site=calling_lines()[0],
                detail=f"{backend}, world_size={world if size == -1 else size}",
            )
        )
        ledger.blocked.enter(call)
        try:
            return join(*args, **kwargs)
        finally:
            ledger.blocked.leave()

    return recorded
