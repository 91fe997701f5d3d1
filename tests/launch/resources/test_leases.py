"""Groups of ranks in all processes share one budget: all or nothing, in order of arrival."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from pytest_trainsafe.launch.resources.leases import (
    Lease,
    LeaseError,
    Leases,
    _Place,
    cores,
    user_directory,
)
from pytest_trainsafe.launch.resources.locks import Stopped, try_lock
from pytest_trainsafe.launch.resources.turns import Claim
from tests.support.launch import lease_holder

HOLDER = lease_holder.__file__


class Watched(threading.Event):
    """A stop event that notes when it is looked at: then its owner is in the queue."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting = threading.Event()

    def is_set(self) -> bool:
        self.waiting.set()
        return super().is_set()


class Group(threading.Thread):
    """A group that takes its lease in a thread and holds it until `done` is set."""

    def __init__(self, leases: Leases, ranks: int, order: list[str], name: str) -> None:
        super().__init__(daemon=True, name=name)
        self.leases, self.ranks, self.order = leases, ranks, order
        self.stop, self.holds, self.done = Watched(), threading.Event(), threading.Event()
        self.stopped = False
        self.soon: Callable[[], object] | None = None

    def run(self) -> None:
        try:
            with self.leases.take(self.ranks, stop=self.stop, soon=self.soon):
                self.order.append(self.name)
                self.holds.set()
                self.done.wait(60)
        except Stopped:
            self.stopped = True

    def queued(self) -> Group:
        """Start the thread, and return when it waits for its lease."""
        self.start()
        assert self.stop.waiting.wait(60)
        assert not self.holds.is_set()
        return self

    def finish(self) -> None:
        assert self.holds.wait(60)
        self.done.set()
        self.join(60)


@pytest.fixture
def leases(tmp_path: Path) -> Leases:
    return Leases(2, directory=tmp_path, environ={})


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that holds both slots, and has forked a child that outlives it."""
    command = [sys.executable, HOLDER, str(tmp_path), "2", "2"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        state, child = process.stdout.readline().split()
        assert state == "held"
        yield process
        os.kill(int(child), signal.SIGKILL)


def test_groups_that_fit_hold_leases_at_the_same_time_and_leave_no_claims(
    leases: Leases, tmp_path: Path
) -> None:
    with leases.take(1), leases.take(1):
        assert len(list(tmp_path.glob("*.held"))) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["gate"]


def test_a_group_waits_until_all_of_its_ranks_fit(leases: Leases) -> None:
    with ExitStack() as one, ExitStack() as two:
        one.enter_context(leases.take(1))
        two.enter_context(leases.take(1))
        group = Group(leases, 2, [], "two ranks").queued()
        one.close()
        small = Group(leases, 1, [], "one rank").queued()
        assert not group.holds.is_set()
        two.close()
        group.finish()
        small.finish()


def test_a_group_that_leaves_wakes_the_next_one_of_its_process(
    leases: Leases, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pytest_trainsafe.launch.resources.leases.POLL", 600.0)
    with leases.take(2):
        groups = [Group(leases, 2, [], name).queued() for name in ("second", "third")]
    for group in groups:
        group.finish()


def test_groups_get_leases_in_order_of_arrival_so_a_large_one_is_not_starved(
    leases: Leases,
) -> None:
    order: list[str] = []
    with leases.take(1):
        big = Group(leases, 2, order, "big").queued()
        # A slot is free, but the big group came first.
        small = [Group(leases, 1, order, f"small {n}").queued() for n in range(3)]
    assert big.holds.wait(60)
    assert order == ["big"]
    big.finish()
    assert small[0].holds.wait(60)
    assert small[1].holds.wait(60)
    assert not small[2].holds.is_set()
    for group in small:
        group.finish()


def test_a_group_larger_than_the_budget_runs_alone(leases: Leases) -> None:
    with leases.take(1):
        huge = Group(leases, 8, [], "huge").queued()
    assert huge.holds.wait(60)
    small = Group(leases, 1, [], "small").queued()
    huge.finish()
    small.finish()


def test_a_group_that_stops_waiting_gives_up_its_place_in_the_queue(
    leases: Leases, tmp_path: Path
) -> None:
    with leases.take(2):
        first = Group(leases, 2, [], "first").queued()
        second = Group(leases, 1, [], "second").queued()
        first.stop.set()
        first.join(60)
        assert first.stopped
        assert len(list(tmp_path.glob("*.waiting"))) == 1
    second.finish()


def test_an_exception_in_the_block_frees_the_lease(leases: Leases) -> None:
    with pytest.raises(RuntimeError), leases.take(2):
        raise RuntimeError
    with leases.take(2) as lease:
        assert lease.ranks == 2


def test_a_killed_process_frees_its_lease_although_its_child_still_runs(
    leases: Leases, holder: subprocess.Popen[str], tmp_path: Path
) -> None:
    group = Group(leases, 1, [], "waits").queued()
    holder.kill()
    group.finish()
    assert [path.name for path in tmp_path.iterdir()] == ["gate"]


def test_eight_processes_never_exceed_the_budget_and_get_all_their_leases(tmp_path: Path) -> None:
    log = tmp_path / "log"
    turns = ["1,2,1,2", "2,1,3,1"]
    command = [sys.executable, HOLDER, str(tmp_path / "leases"), "2"]
    processes = [subprocess.Popen([*command, turns[n % 2], str(log)]) for n in range(8)]
    assert [process.wait(60) for process in processes] == [0] * 8

    held: list[int] = []
    most = 0
    for line in log.read_text().split():
        ranks = int(line[1:])
        if line[0] == "+":
            held.append(ranks)
        else:
            held.remove(ranks)
        most = max(most, sum(held))
        assert sum(held) <= 2 or held == [3]
    assert most == 3
    assert log.read_text().count("+") == 32
    assert held == []


def test_a_run_inside_a_rank_uses_the_lease_of_the_rank(leases: Leases, tmp_path: Path) -> None:
    with leases.take(2) as outer:
        inner = Leases(2, directory=tmp_path, environ=outer.env)
        with inner.take(2) as lease:
            assert lease == Lease(2, "cpu", {})


def test_a_waiting_group_gets_its_lease_after_the_queue_files_were_deleted(
    leases: Leases, tmp_path: Path
) -> None:
    with leases.take(2):
        group = Group(leases, 1, [], "waits").queued()
        for path in tmp_path.iterdir():
            path.unlink()
    group.finish()


def test_the_budget_is_the_cores_this_process_may_use_and_at_least_two() -> None:
    assert Leases(directory=Path("unused")).slots == max(2, cores())
    assert Leases(7, directory=Path("unused")).slots == 7


GPU = "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6"
OTHER = "GPU-a1b2c3d4-d72c-4106-c12f-20bd9faed9f6"
MIG = ["MIG-GPU-8932f937-d72c-4106-c12f-20bd9faed9f6/1/0", "MIG-c7384736-a75d-5afc-978f"]


def on_gpus(directory: Path, environ: Mapping[str, str], count: int = 8, **options: Any) -> Leases:
    return Leases(2, directory=directory, environ=environ, gpu_count=lambda: count, **options)


@pytest.mark.parametrize(
    ("written", "count", "one", "two"),
    [
        (None, 4, "0", "1,2"),
        ("3,1,2", 3, "3", "1,2"),
        (f"{GPU}, {OTHER},GPU-ffff", 3, GPU, f"{OTHER},GPU-ffff"),
        (",".join([*MIG, "MIG-eeee"]), 3, MIG[0], f"{MIG[1]},MIG-eeee"),
        ("5,6,7,-1,2", 3, "5", "6,7"),
    ],
)
def test_groups_get_the_gpus_of_cuda_visible_devices_in_the_same_notation(
    tmp_path: Path, written: str | None, count: int, one: str, two: str
) -> None:
    environ = {} if written is None else {"CUDA_VISIBLE_DEVICES": written}
    leases = on_gpus(tmp_path, environ, count)
    with leases.take(1, "cuda") as first, leases.take(2, "cuda") as second:
        assert first.env["CUDA_VISIBLE_DEVICES"] == one
        assert second.env["CUDA_VISIBLE_DEVICES"] == two
        # Groups on GPUs take no CPU slots, and a group on the CPU gets no GPU.
        with leases.take(2) as third:
            assert "CUDA_VISIBLE_DEVICES" not in third.env


@pytest.mark.parametrize("written", ["", "-1", "none", "0,0", f"{GPU},{GPU}"])
def test_groups_get_no_gpu_and_do_not_wait_if_the_list_has_no_valid_gpu(
    tmp_path: Path, written: str
) -> None:
    leases = on_gpus(tmp_path, {"CUDA_VISIBLE_DEVICES": written})
    with leases.take(2, "cuda") as one, leases.take(2, "cuda") as two:
        assert one.env["CUDA_VISIBLE_DEVICES"] == two.env["CUDA_VISIBLE_DEVICES"] == ""


def test_a_gpu_list_ends_before_an_entry_in_another_format(tmp_path: Path) -> None:
    with on_gpus(tmp_path, {"CUDA_VISIBLE_DEVICES": f"0,1,{GPU},2"}).take(4, "cuda") as lease:
        assert lease.env["CUDA_VISIBLE_DEVICES"] == "0,1"


@pytest.mark.parametrize(
    ("one", "other", "together"),
    [
        ("0,1", "2,3", True),
        ("0,1", "1,2", False),
        ("1", "01", False),
        (GPU, OTHER, True),
        (GPU, "GPU-8932", False),
        (GPU, "0", False),
        (MIG[1], GPU, False),
        (MIG[0], MIG[1], True),
    ],
)
def test_processes_never_share_a_gpu_even_if_their_notations_for_it_differ(
    tmp_path: Path, one: str, other: str, together: bool
) -> None:
    first = on_gpus(tmp_path, {"CUDA_VISIBLE_DEVICES": one})
    second = on_gpus(tmp_path, {"CUDA_VISIBLE_DEVICES": other})
    stop = threading.Event()
    stop.set()
    with first.take(2, "cuda"):
        if together:
            with second.take(2, "cuda", stop=stop) as lease:
                assert lease.env["CUDA_VISIBLE_DEVICES"] == other
        else:
            with pytest.raises(Stopped), second.take(2, "cuda", stop=stop):
                pass


def test_the_lease_folder_is_private_to_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    runtime = tmp_path / "runtime"
    runtime.mkdir()

    path = user_directory({"XDG_RUNTIME_DIR": str(runtime)})
    assert path == runtime / "pytest-trainsafe"
    assert path.stat().st_mode & 0o777 == 0o700
    path.chmod(0o755)
    assert user_directory({"XDG_RUNTIME_DIR": str(runtime)}).stat().st_mode & 0o777 == 0o700

    for environ in ({}, {"XDG_RUNTIME_DIR": str(tmp_path / "not there")}):
        assert user_directory(environ) == tmp_path / f"pytest-trainsafe-{os.geteuid()}"


def test_a_symbolic_link_in_place_of_the_lease_folder_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / f"pytest-trainsafe-{os.geteuid()}").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(LeaseError, match="is not a folder, or belongs to another user"):
        user_directory({})


def test_a_lease_folder_that_is_replaced_while_waiting_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, elsewhere = tmp_path / "leases", tmp_path / "elsewhere"
    folder.mkdir()

    def replaced(_self: _Place) -> dict[Path, Claim]:
        folder.rename(elsewhere)
        folder.symlink_to(elsewhere)
        raise FileNotFoundError

    monkeypatch.setattr(_Place, "_rivals", replaced)
    refused = pytest.raises(LeaseError, match="is not a folder, or belongs to another user")
    with refused, Leases(2, directory=folder).take(1):
        pass


@pytest.mark.parametrize("content", [b"", b"[" * 50_000, b"\xff", b'{"ranks": "many"}'])
def test_a_damaged_claim_is_an_error_while_its_owner_lives_and_is_removed_after(
    tmp_path: Path, content: bytes
) -> None:
    claim = tmp_path / "00000001-1-1.held"
    claim.write_bytes(content)
    lock = try_lock(claim)
    assert lock is not None
    refused = pytest.raises(LeaseError, match=f"{claim}, which .* is damaged")
    with lock, refused, Leases(2, directory=tmp_path).take(1):
        pass
    with Leases(2, directory=tmp_path).take(1):  # the claim of a dead run is removed
        assert not claim.exists()


@pytest.mark.parametrize("make", [os.mkfifo, Path.mkdir, lambda path: path.symlink_to("/dev/zero")])
def test_a_claim_that_is_no_regular_file_does_not_block_and_is_removed(
    tmp_path: Path, make: Callable[[Path], None]
) -> None:
    for name in ("00000001-1-1.held", "x.held", "9.waiting"):
        make(tmp_path / name)
    with Leases(2, directory=tmp_path).take(1):
        assert not os.path.lexists(tmp_path / "00000001-1-1.held")


def test_only_the_next_group_in_the_queue_is_notified(leases: Leases) -> None:
    order: list[str] = []
    at_once, last = threading.Event(), threading.Event()
    with leases.take(1, soon=at_once.set):
        assert not at_once.is_set()
    second, third = Group(leases, 2, order, "second"), Group(leases, 1, order, "third")
    second_is_next, third.soon = threading.Event(), last.set
    second.soon = second_is_next.set
    with leases.take(2):
        second.queued()
        assert second_is_next.wait(60)
        third.queued()
        assert not last.is_set()
    assert second.holds.wait(60)
    assert last.wait(60)
    second.finish()
    third.finish()
    assert order == ["second", "third"]


def test_a_claim_that_cannot_be_written_is_an_error_and_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        named = rf"{tmp_path}/\S+ cannot be used \(No space left on device\).*set TMPDIR"
        with pytest.raises(LeaseError, match=named), Leases(2, directory=tmp_path).take(1):
            pass

    assert [path.name for path in tmp_path.iterdir()] == ["gate"]
    with Leases(2, directory=tmp_path).take(1) as lease:
        assert lease is not None


def test_a_claim_that_is_deleted_before_it_is_visible_is_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, swept = _Place._write, list[Path]()

    def sweep(place: _Place) -> None:
        write(place)
        if not swept:
            swept.extend(tmp_path.glob(".*"))
            for path in swept:
                path.unlink()

    monkeypatch.setattr(_Place, "_write", sweep)
    with Leases(2, directory=tmp_path).take(1):
        assert len(swept) == 1
        assert len(list(tmp_path.glob("*.held"))) == 1
