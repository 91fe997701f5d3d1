"""Leases limit how many ranks run at once on this machine, over all pytest processes of a user.

The session takes a lease for every group of ranks.  A lease is a file, in a folder of the user's
own, that its holder keeps locked; the kernel releases the lock when the holder dies.

    00000007-4242-1.waiting     a group that waits for its turn; the names sort by arrival
    00000006-4200-3.held        a group that runs
    gate                        locked briefly by whoever changes the files above
"""

from __future__ import annotations

import itertools
import os
import re
import shutil
import stat
import tempfile
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from pytest_trainsafe.core.untrusted import MALFORMED, read_file
from pytest_trainsafe.core.usage import first_few
from pytest_trainsafe.errors import TrainsafeError
from pytest_trainsafe.launch.resources import gpus
from pytest_trainsafe.launch.resources.locks import (
    POLL,
    Lock,
    Stopped,
    is_locked,
    try_lock,
    wait_lock,
)
from pytest_trainsafe.launch.resources.turns import MAX_TEXT, Claim, Turn, turn
from pytest_trainsafe.launch.task import Device

#: An environment variable that is set for ranks.  A pytest run inside a rank uses the rank's lease:
#: if it waited for room that its parent processes hold, it would wait forever.
LEASED = "PYTEST_TRAINSAFE_LEASED"

WAITING, HELD = ".waiting", ".held"

#: The names of lease files, after a dot until they are complete; `user_directory` may hold other
#: files.
_NAME = re.compile(rf"\d{{8,12}}-\d+-\d+({WAITING}|{HELD})".replace(".", r"\."), re.ASCII)
_HIDDEN = re.compile(r"\.\d{8,12}-\d+-\d+", re.ASCII)

#: Which pytest run a worker of pytest-xdist belongs to.
RUN = "PYTEST_XDIST_TESTRUNUID"

#: Maximum bytes of a claim: a few entries for each GPU.
_MAX_CLAIM = 2**16

_numbers = itertools.count(1)

#: Wakes the waiting groups of this process when one of its groups leaves; groups of other processes
#: are found by polling.
_left = threading.Condition()

#: Held with the gate, so that the groups of this process do not poll for it.
_at_gate = threading.Lock()


class LeaseError(TrainsafeError):
    """The folder of the leases cannot be used; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class Lease:
    """Room for a group of ranks.  `env` holds variables to add to the ranks' environment."""

    ranks: int
    device: Device
    env: Mapping[str, str]


class Leases:
    """A budget of `slots` ranks on the CPU, and of the GPUs that this process may use.

    If `slots` is 0, there is one for each core that this process may run on, and at least two.  A
    rank on a GPU takes one GPU and no slot.  `directory` is the folder of lease files, by default
    `user_directory()`; `environ` is the environment, by default that of this process.
    """

    def __init__(
        self,
        slots: int = 0,
        *,
        directory: Path | None = None,
        environ: Mapping[str, str] = os.environ,
        gpu_count: Callable[[], int] | None = None,
    ) -> None:
        self.slots = slots or max(2, cores())
        self._chosen = directory
        self._environ = environ
        self._gpu_count = gpu_count or _gpu_count

    def forget_dead(self) -> None:
        """Removes the lease files that dead processes left, if the folder can be used."""
        if LEASED in self._environ:
            return
        with suppress(OSError, LeaseError):
            directory = self._directory()
            gate = try_lock(directory / "gate")
            if gate is None:  # whoever holds it is about to remove them
                return
            with gate:
                for path in directory.iterdir():
                    named = _NAME.fullmatch(path.name) or _HIDDEN.fullmatch(path.name)
                    if named and not is_locked(path):
                        _remove(path)

    @contextmanager
    def take(
        self,
        ranks: int,
        device: Device = "cpu",
        stop: threading.Event | None = None,
        soon: Callable[[], object] | None = None,
        joined: Callable[[], object] = lambda: None,
        waits: Callable[[str], object] = lambda _: None,
    ) -> Iterator[Lease]:
        """Waits for room for all ranks of a group, and holds it until the block ends.

        The order of groups is that of `turns`.  A group that is larger than the whole budget runs
        alone.  `joined` is called when the group is in the queue, `soon` once if the group is next
        but there is no room yet, and `waits` with the other test runs that it waits for, whenever
        these change.  Raises Stopped if `stop` is set while the group waits, LeaseError if the
        folder of lease files cannot be used.
        """
        if LEASED in self._environ:
            joined()
            yield Lease(ranks, device, {})
            return
        place = _Place(self._directory(), self._request(ranks, device), stop or threading.Event())
        try:
            granted = place.wait(soon, joined, waits)
            env = {LEASED: "1"}
            if device == "cuda":
                env[gpus.VARIABLE] = ",".join(granted.gpus)
            yield Lease(ranks, device, env)
        finally:
            place.leave()

    def _request(self, ranks: int, device: Device) -> Claim:
        assert ranks >= 1, ranks
        usable = gpus.visible(self._environ, self._gpu_count) if device == "cuda" else ()
        run = self._environ.get(RUN, "") or str(os.getpid())
        # A worker of pytest-xdist is a child of the process that the user started.
        process = os.getppid() if RUN in self._environ else os.getpid()
        folder = os.path.realpath(os.curdir)[:MAX_TEXT]
        return Claim(ranks, device, usable, self.slots, run[:MAX_TEXT], process, folder)

    def _directory(self) -> Path:
        return self._chosen or user_directory(self._environ)


class _Place:
    """One group's place in the queue, and later its lease."""

    def __init__(self, directory: Path, claim: Claim, stop: threading.Event) -> None:
        self.directory = directory
        self.claim = claim
        self.stop = stop
        self.path = directory
        self.lock: Lock | None = None

    def wait(
        self,
        soon: Callable[[], object] | None,
        joined: Callable[[], object],
        waits: Callable[[str], object],
    ) -> Claim:
        """Waits for room and returns the granted claim; the functions are as in `Leases.take`."""
        shown = ""
        while True:
            try:
                with _at_gate, wait_lock(self.directory / "gate", self.stop):
                    if self.lock is None or not self.path.exists():
                        self.leave()  # a tool that cleans up old files removed our file
                        self._join()
                        joined()
                    rivals = self._rivals()
                    granted = self._start(rivals)
            except FileNotFoundError:
                # A holder left while we read its file, or the folder itself was removed.
                own_folder(self.directory)
                continue
            except OSError as error:
                raise LeaseError(
                    f"{error.filename or self.path} cannot be used ({error.strerror}). Test runs "
                    f"on this machine share {self.directory} to limit how many ranks run at once: "
                    "free space there, or set TMPDIR to a folder that you can write to."
                ) from error
            if granted.starts:
                return self.claim
            if soon is not None and granted.next:
                soon()
                soon = None
            if shown != (text := _runs(self.claim, rivals.values())):
                waits(text)
                shown = text
            with _left:  # also while the files are tested, or a group could leave unnoticed
                while all(is_locked(path) for path in rivals):
                    if self.stop.is_set():
                        raise Stopped(f"stopped waiting for room for {self.claim.ranks} ranks")
                    _left.wait(POLL)

    def leave(self) -> None:
        """Gives up the place or the lease."""
        if self.lock is not None:
            self.path.unlink(missing_ok=True)
            self.lock.release()
            self.lock = None
            with _left:
                _left.notify_all()

    def _join(self) -> None:
        """Joins the end of the queue.  Others see the file only once it is complete and locked."""
        last = max((_number(path) for path in _entries(self.directory)), default=0)
        name = f"{last + 1:08d}-{os.getpid()}-{next(_numbers)}"
        hidden = self.directory / f".{name}"
        self.lock = try_lock(hidden)
        assert self.lock is not None, hidden
        self.path = hidden  # so that `leave` removes it if anything fails from here on
        self._write()
        self.path = hidden.rename(self.directory / (name + WAITING))

    def _start(self, rivals: Mapping[Path, Claim]) -> Turn:
        """Marks the group's lease file as held if it is the group's turn."""
        held = [claim for path, claim in rivals.items() if path.suffix == HELD]
        waiting = [(path, claim) for path, claim in rivals.items() if path.suffix == WAITING]
        earlier = [claim for path, claim in waiting if path.name < self.path.name]
        later = [claim for path, claim in waiting if path.name > self.path.name]
        granted = turn(self.claim, held, earlier, later)
        if granted.starts:
            if self.claim.device == "cuda":
                self.claim = msgspec.structs.replace(self.claim, gpus=granted.gpus)
                self._write()
            self.path = self.path.rename(self.path.with_suffix(HELD))
        else:
            assert rivals, self.claim  # without other groups, every group fits
        return granted

    def _rivals(self) -> dict[Path, Claim]:
        """The competing groups that run or wait, in order of arrival."""
        return {path: claim for path, claim in self._others() if claim.competes(self.claim)}

    def _others(self) -> list[tuple[Path, Claim]]:
        """The claims of other groups, in order of arrival; removes the files of dead processes."""
        found = []
        for path in _entries(self.directory):
            if path == self.path:
                continue
            if is_locked(path):
                found.append((path, _read_claim(path)))
            else:
                _remove(path)
        return found

    def _write(self) -> None:
        assert self.lock is not None
        data = msgspec.json.encode(self.claim)
        os.pwrite(self.lock.descriptor, data, 0)
        os.ftruncate(self.lock.descriptor, len(data))


def _runs(claim: Claim, rivals: Collection[Claim]) -> str:
    """The other test runs among the rivals, by process and folder, such as "process 42 in /a"."""
    others = {each.run: each for each in rivals if each.run and each.run != claim.run}
    return first_few([f"process {each.process} in {each.folder}" for each in others.values()])


def cores() -> int:
    """The number of cores that this process may run on."""
    return len(os.sched_getaffinity(0))


def user_directory(environ: Mapping[str, str] = os.environ) -> Path:
    """The folder shared by all of this user's processes on this machine; created if needed.

    It is in XDG_RUNTIME_DIR if that is set, else in the folder for temporary files.  Raises
    LeaseError if the path belongs to another user.
    """
    runtime = environ.get("XDG_RUNTIME_DIR", "")
    if runtime and os.access(runtime, os.W_OK | os.X_OK) and _ours(Path(runtime)):
        path = Path(runtime) / "pytest-trainsafe"
    else:
        path = Path(tempfile.gettempdir()) / f"pytest-trainsafe-{os.geteuid()}"
    own_folder(path)
    return path


def own_folder(path: Path) -> None:
    """Creates a folder that only this user can enter; raises LeaseError if that fails."""
    try:
        path.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise LeaseError(
            f"cannot create {path} ({error.strerror}). Test runs on this machine use this folder "
            "to agree on how many ranks run at once; set TMPDIR to a folder that you can write to."
        ) from error
    if not _ours(path):
        raise LeaseError(
            f"{path} is not a folder, or belongs to another user. Test runs on this machine use "
            f"this folder to agree on how many ranks run at once; remove {path.name}, or set "
            "TMPDIR to a folder that only you can write to."
        )
    path.chmod(0o700)


def _read_claim(path: Path) -> Claim:
    try:
        return msgspec.json.decode(read_file(path, max_bytes=_MAX_CLAIM), type=Claim)
    except MALFORMED as error:
        raise LeaseError(
            f"{path}, which records the slots and GPUs of a running test run, is damaged "
            f"({error}). Remove this file; until that test run ends, more ranks than planned may "
            "run at once."
        ) from error


def _remove(path: Path) -> None:
    """Removes a lease file that a dead run left, or a folder that has the name of one."""
    try:
        path.unlink(missing_ok=True)
    except IsADirectoryError:
        shutil.rmtree(path, ignore_errors=True)


def _ours(path: Path) -> bool:
    status = path.lstat()
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()


def _entries(directory: Path) -> Sequence[Path]:
    return sorted(path for path in directory.iterdir() if _NAME.fullmatch(path.name))


def _number(path: Path) -> int:
    return int(path.name.partition("-")[0])


def _gpu_count() -> int:
    import torch

    return torch.cuda.device_count()
