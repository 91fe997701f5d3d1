"""What the ranks of the fault matrix run: each goes wrong in one way, or only seems to."""

from __future__ import annotations

import ctypes
import os
import re
import signal
import sys
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist

from tests.support.launch.programs import join


def wait() -> None:
    """Wait for all ranks."""
    dist.all_reduce(torch.ones(4))


def send_signal(number: int) -> None:
    """Rank 1 sends itself a signal; rank 0 waits for it."""
    if join() == 1:
        os.kill(os.getpid(), number)
    wait()


def read_address_0() -> None:
    """Rank 1 reads memory that it does not have."""
    if join() == 1:
        ctypes.string_at(0)
    wait()


def end_process(code: int) -> None:
    """Rank 1 ends its process without an exception."""
    if join() == 1:
        os._exit(code)
    wait()


def call_sys_exit() -> None:
    """Rank 1 leaves by sys.exit."""
    if join() == 1:
        sys.exit(3)
    wait()


def ask_for_too_much() -> None:
    """Rank 1 runs out of memory."""
    if join() == 1:
        bytearray(1 << 62)
    wait()


def hold_the_gil() -> None:
    """Rank 1 never releases the GIL."""
    if join() == 1:
        re.match(r"(a+)+$", "a" * 60 + "b")
    wait()


def wait_for_own_lock() -> None:
    """Rank 1 acquires a lock twice."""
    if join() == 1:
        lock = threading.Lock()
        with lock, lock:
            pass
    wait()


def fail_in_hook() -> None:
    """A gradient's hook raises on rank 1, below several modules."""

    def fail(gradient: torch.Tensor) -> None:
        raise ValueError("no such gradient")

    rank = join()
    model = torch.nn.Sequential(*(torch.nn.Linear(2, 2) for _ in range(3)))
    if rank == 1:
        model.get_parameter("0.weight").register_hook(fail)
    model(torch.ones(1, 2)).sum().backward()
    wait()


class Failing(torch.utils.data.Dataset[torch.Tensor]):
    """Its first item is fine; the next raises, kills the process that loads it, or is slow."""

    def __init__(self, how: str) -> None:
        self.how = how

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == 1 and self.how == "raises":
            raise ValueError("no such item")
        if index == 1 and self.how == "is killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if index == 1 and self.how == "is slow":
            time.sleep(SLOW)
        return torch.ones(2)


def load(how: str) -> None:
    """Rank 1 loads data by a worker that fails, or is killed itself while it has one."""
    if join() == 1:
        for number, _ in enumerate(torch.utils.data.DataLoader(Failing(how), num_workers=1)):
            if number == 1 and how == "rank is killed":
                os.kill(os.getpid(), signal.SIGKILL)
    wait()


class UnprintableError(Exception):
    """An exception that cannot be printed."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


def raise_text(kind: str) -> None:
    """Rank 1 raises an exception whose text cannot be made, is huge, or is not encodable."""
    if join() == 1:
        if kind == "raises":
            raise UnprintableError
        if kind == "is huge":
            raise ValueError("the start " + "x" * 50_000_000 + " the end")
        sys.stdout.buffer.write(b"\xff\xfe\n")
        raise ValueError("not \udcff text")
    wait()


def assert_without_text() -> None:
    """Rank 1 fails an assertion without a message."""
    total = join()
    assert total == 0
    wait()


def lose_streams(how: str) -> float:
    """Close or replace the standard streams, and go on."""
    join()
    print("said before")
    for name, fd in (("stdout", 1), ("stderr", 2)):
        if how == "close":
            getattr(sys, name).close()
        elif how == "descriptor":
            os.close(fd)
        else:
            setattr(sys, name, None if how == "none" else object())
    total = torch.ones(1)
    dist.all_reduce(total)
    return float(total)


def fail_without_streams() -> None:
    """Rank 1 raises after it closed its streams."""
    lose_streams("descriptor")
    if dist.get_rank() == 1:
        raise ValueError("said nowhere")
    wait()


def signal_reaper(number: int, generations: int = 1) -> float:
    """Rank 0 sends its reaper a signal, and all go on."""
    rank = join()
    if rank == 0:
        pid = os.getpid()
        for _ in range(generations):
            stat = Path(f"/proc/{pid}/stat").read_text()
            pid = int(stat.rpartition(")")[2].split()[1])
        os.kill(pid, number)
        if number == signal.SIGKILL:
            signal.pause()
    wait()
    return 1.0


def stop_agent(needed: bool) -> str:
    """The last rank suspends its parent, torchrun's agent; a new group needs the agent's store."""
    rank = join()
    wait()  # until then, a rank needs the store to find the other
    if rank == dist.get_world_size() - 1:
        os.kill(os.getppid(), signal.SIGSTOP)
    wait()
    if needed:
        dist.all_reduce(torch.ones(4), group=dist.new_group([0, 1]))
    return "done"


def disagree(what: str) -> None:
    """Ranks call collectives that do not fit each other."""
    rank = join()
    if what == "operation":
        if rank:
            dist.all_gather([torch.ones(4), torch.ones(4)], torch.ones(4))
        else:
            wait()
    elif what == "root":
        dist.broadcast(torch.ones(4), src=1 - rank)
    elif what == "size":
        dist.all_reduce(torch.ones(4 + 4 * rank))
    elif what == "dtype":
        dist.all_reduce(torch.ones(4, dtype=[torch.float32, torch.int32][rank]))
    elif what == "reduction":
        dist.all_reduce(torch.ones(4), op=[dist.ReduceOp.SUM, dist.ReduceOp.MAX][rank])
    elif rank == 0:  # one call too many
        wait()


def use_two_groups() -> None:
    """Each rank reduces in another group of the same ranks."""
    rank = join()
    groups = [dist.new_group([0, 1]), dist.new_group([0, 1])]
    dist.all_reduce(torch.ones(4), group=groups[rank])


def use_a_larger_group() -> None:
    """Rank 1 reduces over the world, ranks 0 and 2 in groups that have it as a member."""
    rank = join()
    groups = [dist.new_group([0, 1]), None, dist.new_group([1, 2])]
    dist.all_reduce(torch.ones(4), group=groups[rank])


def talk_to_oneself(asynchronous: bool) -> None:
    """Rank 1 sends to itself."""
    if join() == 1:
        (dist.isend if asynchronous else dist.send)(torch.ones(4), dst=1)
    wait()


def use_two_tags() -> None:
    """Rank 0 sends with one tag, rank 1 receives with another."""
    if join() == 0:
        dist.send(torch.ones(4), dst=1, tag=5)
    else:
        dist.recv(torch.ones(4), src=0, tag=6)


def receive_first() -> None:
    """Both ranks receive before they send."""
    other = 1 - join()
    dist.recv(torch.ones(4), src=other)
    dist.send(torch.ones(4), dst=other)


def wait_in_a_ring() -> None:
    """Each of three ranks waits for work that only the next one's later call would finish."""
    rank = join()
    work = dist.irecv(torch.ones(4), src=(rank + 1) % 3)
    assert work is not None
    work.wait()
    dist.send(torch.ones(4), dst=(rank - 1) % 3)


def reduce_and_receive() -> None:
    """Rank 0 reduces, rank 1 receives from rank 0 first."""
    if join() == 1:
        dist.recv(torch.ones(4), src=0)
    wait()
    if dist.get_rank() == 0:
        dist.send(torch.ones(4), dst=1)


#: Longer than the launcher waits for deadlocked ranks.
SLOW = 8.0


def be_slow() -> str:
    """Four ranks wait in calls of several kinds for rank 1, which does nothing for long.

    Rank 0 waits for a message of any rank, rank 2 for a batch that it issued before, rank 3 in a
    collective of a group, and rank 4 for rank 0.
    """
    rank = join()
    pair = dist.new_group([1, 3])
    there, back = torch.ones(4), torch.zeros(4)
    if rank == 0:
        dist.recv(back)
        dist.send(there, dst=4)
    elif rank == 1:
        reduced = dist.all_reduce(torch.ones(4), group=pair, async_op=True)
        time.sleep(SLOW)
        dist.send(there, dst=0)
        for work in dist.batch_isend_irecv(
            [dist.P2POp(dist.isend, there, 2), dist.P2POp(dist.irecv, back, 2)]
        ):
            work.wait()
        dist.all_reduce(torch.ones(4), group=pair)
        assert reduced is not None
        reduced.wait()
    elif rank == 2:
        ops = [dist.P2POp(dist.irecv, back, 1), dist.P2POp(dist.isend, there, 1)]
        for work in dist.batch_isend_irecv(ops):
            work.wait()
    elif rank == 3:
        dist.all_reduce(torch.ones(4), group=pair)
        dist.all_reduce(torch.ones(4), group=pair)
    else:
        dist.recv(back, src=0)
    wait()
    return "done"


def send_from_a_thread() -> str:
    """Both ranks receive in their main threads; a thread of rank 1 is slow to send."""
    rank = join()
    if rank == 1:

        def send() -> None:
            time.sleep(SLOW)
            dist.send(torch.ones(4), dst=0)

        thread = threading.Thread(target=send)
        thread.start()
        dist.recv(torch.ones(4), src=0)
        thread.join()
    else:
        dist.recv(torch.ones(4), src=1)
        dist.send(torch.ones(4), dst=1)
    return "done"


def load_slowly() -> str:
    """Rank 1 waits for a data loader's worker while rank 0 waits in a collective."""
    if join() == 1:
        list(torch.utils.data.DataLoader(Failing("is slow"), num_workers=1))
    wait()
    return "done"


def stop_and_continue() -> str:
    """Rank 1 is suspended for a moment, as by a terminal's Ctrl-Z and fg."""
    if join() == 1:
        pid = os.getpid()
        if (child := os.fork()) == 0:
            time.sleep(1.0)
            os.kill(pid, signal.SIGCONT)
            os._exit(0)
        os.kill(pid, signal.SIGSTOP)
        os.waitpid(child, 0)
    wait()
    return "done"


def debug() -> None:
    """Rank 1 stops at a breakpoint."""
    if join() == 1:
        breakpoint()
    wait()
