"""The fault matrix: what goes wrong in a rank, what the failure says, and when the group ends.

`test_fault_matrix` runs every row; docs/faults.md holds the same rows as tables.

    python tests/support/launch/fault_catalogue.py    update them there
"""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

DOCS = Path(__file__).parents[3] / "docs" / "faults.md"

#: When the group ends: as soon as the rank has failed, after some idle seconds, or at the timeout.
Ends = Literal["at once", "after seconds", "timeout", "normally"]


@dataclass(frozen=True)
class Fault:
    """One row.  `says` are patterns, all of which the failure's first lines match.

    The first is of the headline; {file} stands for the programs' file, and `shown` is the
    headline as the documentation shows it.  Without a pattern, the group succeeds.
    """

    fault: str
    program: str
    args: tuple[object, ...] = ()
    shown: str = ""
    says: tuple[str, ...] = ()
    ends: Ends = "at once"
    world_size: int = 2
    torchrun: bool = False  # whether it is tried under torchrun too
    under_torchrun: str = ""  # the headline there, where it differs


def _mismatch(what: str) -> tuple[str, ...]:
    return (
        rf"collective mismatch: collective 1 of the group of ranks \[0, 1\] differs \({what}\)",
    )


FAULTS = [
    # --- a process ends ---
    Fault(
        "SIGKILL",
        "send_signal",
        (int(signal.SIGKILL),),
        "rank 1 of 2 was killed by SIGKILL (signal 9)",
        torchrun=True,
    ),
    Fault(
        "a real-time signal",
        "send_signal",
        (int(signal.SIGRTMIN) + 6,),
        "rank 1 of 2 was killed by SIGRTMIN+6 (signal 40)",
    ),
    Fault(
        "an access to an invalid address",
        "read_address_0",
        (),
        "rank 1 of 2 was killed by SIGSEGV (signal 11)",
        (r"rank 1 of 2 was killed by SIGSEGV", r"in read_address_0"),
    ),
    Fault(
        "`os._exit(0)`",
        "end_process",
        (0,),
        "rank 1 of 2 ended without a result, and the launcher saw no failure; "
        "did it call os._exit(0)?",
    ),
    Fault(
        "`os._exit(3)`",
        "end_process",
        (3,),
        "rank 1 of 2 ended without a result, with exit code 3",
    ),
    Fault("`sys.exit(3)`", "call_sys_exit", (), "rank 1 of 2 raised SystemExit: 3"),
    Fault(
        "a data loader's worker is killed",
        "load",
        ("is killed",),
        "rank 1 of 2 raised RuntimeError: DataLoader worker (pid(s) 417) exited unexpectedly",
        (r"rank 1 of 2 raised RuntimeError: DataLoader worker \(pid",),
    ),
    Fault(
        "a rank with a data loader's worker is killed",
        "load",
        ("rank is killed",),
        "rank 1 of 2 was killed by SIGKILL (signal 9)",
    ),
    # --- a program raises ---
    Fault(
        "a data loader's worker raises",
        "load",
        ("raises",),
        "rank 1 of 2 raised ValueError: Caught ValueError in DataLoader worker process 0.",
    ),
    Fault(
        "out of memory, with an exception without text",
        "ask_for_too_much",
        (),
        "rank 1 of 2 raised MemoryError: bytearray(1 << 62) at train.py:58",
        (r"rank 1 of 2 raised MemoryError: bytearray\(1 << 62\) at {file}:\d+$",),
    ),
    Fault(
        "an assertion without text",
        "assert_without_text",
        (),
        "rank 1 of 2 raised AssertionError: assert total == 0 at train.py:142",
        (r"rank 1 of 2 raised AssertionError: assert total == 0 at {file}:\d+$",),
    ),
    Fault(
        "`breakpoint()` without `--trainsafe-debug`",
        "debug",
        (),
        "rank 1 of 2 raised BreakpointError: rank 1 called breakpoint() at train.py:350; run "
        "pytest with --trainsafe-debug 1 to debug rank 1 of the candidate in the terminal, or "
        "remove the call",
        (r"rank 1 of 2 raised BreakpointError: rank 1 called breakpoint\(\) at {file}:\d+; ",),
    ),
    Fault(
        "a hook of the backward pass raises",
        "fail_in_hook",
        (),
        "rank 1 of 2 raised ValueError: no such gradient",
    ),
    Fault(
        "an exception whose `__str__` raises",
        "raise_text",
        ("raises",),
        "rank 1 of 2 raised UnprintableError: (its text is unknown: __str__ raised RuntimeError) "
        "at train.py:131",
        (
            (
                r"rank 1 of 2 raised UnprintableError: \(its text is unknown: __str__ raised "
                r"RuntimeError\) at {file}:\d+$"
            ),
        ),
    ),
    Fault(
        "an exception of 50 MB of text",
        "raise_text",
        ("is huge",),
        "rank 1 of 2 raised ValueError: the start xx [... 49998017 characters cut ...] xx the end",
        (
            (
                r"rank 1 of 2 raised ValueError: the start x+ \[\.\.\. \d+ characters cut \.\.\.\] "
                r"x+ the end$"
            ),
        ),
    ),
    Fault(
        "an exception with a lone surrogate, after output that is not UTF-8",
        "raise_text",
        ("is not encodable",),
        "rank 1 of 2 raised ValueError: not \\udcff text",
    ),
    Fault(
        "an exception while stdout and stderr are closed",
        "fail_without_streams",
        (),
        "rank 1 of 2 raised ValueError: said nowhere",
        (r"rank 1 of 2 raised ValueError: said nowhere$", r"in fail_without_streams"),
        torchrun=True,
    ),
    # --- ranks disagree ---
    Fault(
        "different collectives",
        "disagree",
        ("operation",),
        "collective mismatch: collective 1 of the group of ranks [0, 1] differs (operation): "
        "rank 0 all_reduce(SUM) of 4 float32 at train.py:24; "
        "rank 1 all_gather of 4 float32 at train.py:190",
        _mismatch("operation"),
        "after seconds",
    ),
    Fault(
        "different roots of a broadcast",
        "disagree",
        ("root",),
        "collective mismatch: collective 1 of the group of ranks [0, 1] differs (root): ...",
        _mismatch("root"),
        "after seconds",
    ),
    Fault(
        "different sizes",
        "disagree",
        ("size",),
        "collective mismatch: collective 1 of the group of ranks [0, 1] differs "
        "(number of elements): ...",
        _mismatch("number of elements"),
    ),
    Fault(
        "different dtypes",
        "disagree",
        ("dtype",),
        "collective mismatch: collective 1 of the group of ranks [0, 1] differs (dtype): ...",
        _mismatch("dtype"),
    ),
    Fault(
        "different reduce operations",
        "disagree",
        ("reduction",),
        "collective mismatch: collective 1 of the group of ranks [0, 1] differs (reduction): ...",
        _mismatch("reduction"),
    ),
    Fault(
        "a collective that a rank leaves out",
        "disagree",
        ("call",),
        "collective mismatch: collective 1 of the group of ranks [0, 1] is made by rank 0 but not "
        "by rank 1, which finished after no collectives of this group: ...",
        (r"collective mismatch: .* made by rank 0 but not by rank 1, which finished after no",),
        "after seconds",
    ),
    Fault(
        "different groups of the same ranks",
        "use_two_groups",
        (),
        "deadlock: ranks 0 and 1 use different groups of the same ranks: "
        "rank 0 waits for rank 1 in all_reduce(SUM) of 4 float32 at train.py:207 "
        "of the group of ranks [0, 1]; ...",
        (
            (
                r"deadlock: ranks 0 and 1 use different groups of the same ranks: rank 0 waits "
                r"for rank 1 in all_reduce\(SUM\) of 4 float32 at {file}:\d+ .*; rank 1 waits for"
            ),
        ),
        "after seconds",
    ),
    Fault(
        "different groups of different ranks",
        "use_a_larger_group",
        (),
        "deadlock: ranks 0 and 1 wait in collectives of different groups: ...",
        (
            (
                r"deadlock: ranks 0 and 1 wait in collectives of different groups: rank 0 .* of "
                r"the group of ranks \[0, 1\]; rank 1 .*\[0, 1, 2\]; rank 2 .*\[1, 2\]$"
            ),
        ),
        "after seconds",
        3,
    ),
    Fault(
        "a rank sends to itself",
        "talk_to_oneself",
        (False,),
        "rank 1 communicates with itself: send to rank 1 of 4 float32 at train.py:220",
        (
            r"rank 1 communicates with itself: send to rank 1 of 4 float32 at {file}:\d+$",
            r"^rank 1 of 2 raised ValueError: Invalid destination rank",
        ),
    ),
    Fault(
        "a rank sends to itself with isend",
        "talk_to_oneself",
        (True,),
        "rank 1 communicates with itself: send to rank 1 of 4 float32 at train.py:220",
        (
            r"rank 1 communicates with itself: send to rank 1 of 4 float32 at {file}:\d+$",
            r"^rank 1 of 2 raised RuntimeError: ",
        ),
    ),
    Fault(
        "a send and a recv with different tags",
        "use_two_tags",
        (),
        "deadlock: the tags of ranks 0 and 1 do not match (5 and 6): rank 0 waits for rank 1 in "
        "send to rank 1 of 4 float32 with tag 5 at train.py:227; ...",
        (
            (
                r"deadlock: the tags of ranks 0 and 1 do not match \(5 and 6\): rank 0 waits for "
                r"rank 1 in send to rank 1 of 4 float32 with tag 5 at {file}:\d+; rank 1 waits "
                r"for rank 0 in recv from rank 0 of 4 float32 with tag 6 at {file}:\d+$"
            ),
        ),
        "after seconds",
        torchrun=True,
    ),
    Fault(
        "both ranks receive before they send",
        "receive_first",
        (),
        "deadlock: ranks 0 and 1 both receive from each other first: ...",
        (r"deadlock: ranks 0 and 1 both receive from each other first: rank 0 waits for rank 1",),
        "after seconds",
    ),
    Fault(
        "three ranks each wait for an irecv from the next",
        "wait_in_a_ring",
        (),
        "deadlock: the ranks wait in calls that can never complete: ...",
        (r"deadlock: the ranks .* rank 0 waits for rank 1 .* rank 2 waits for rank 0 in recv",),
        "after seconds",
        3,
    ),
    Fault(
        "one rank calls all_reduce, the other receives from it first",
        "reduce_and_receive",
        (),
        "deadlock: the ranks wait in calls that can never complete: ...",
        (r"deadlock: the ranks .* rank 0 waits for rank 1 in all_reduce.* rank 1 .* in recv",),
        "after seconds",
    ),
    # --- a process does nothing ---
    Fault(
        "SIGSTOP",
        "send_signal",
        (int(signal.SIGSTOP),),
        "rank 1 of 2 was suspended by a signal (SIGSTOP or similar, process state T) and not "
        "resumed",
        ends="after seconds",
        torchrun=True,
    ),
    Fault(
        "a loop that holds the GIL",
        "hold_the_gil",
        (),
        "rank 1 is at train.py:63 and did not come to all_reduce; 2 of 2 ranks had not finished "
        "after 2 s",
        (
            r"rank 1 is at \S+:\d+ and did not come to all_reduce( #1)?; 2 of 2 ranks had not fin",
            r"\(hold_the_gil\)   <- the other rank waits",
        ),
        "timeout",
    ),
    Fault(
        "a thread waits for its own lock",
        "wait_for_own_lock",
        (),
        "rank 1 is at train.py:63 and did not come to all_reduce; 2 of 2 ranks had not finished "
        "after 2 s",
        (
            r"rank 1 is at \S+:\d+ and did not come to all_reduce( #1)?; 2 of 2 ranks had not fin",
            r"\(wait_for_own_lock\)   <- the other",
        ),
        "timeout",
    ),
    # --- the reaper above the ranks ---
    Fault(
        "the group's reaper is killed",
        "signal_reaper",
        (int(signal.SIGKILL),),
        "train:train on 2 ranks: the fork server died (signal 9)",
        (r"\S+\.fault_programs:signal_reaper on 2 ranks: the fork server died \(signal 9\)$",),
        torchrun=True,
        under_torchrun=r"tests.support.launch.fault_programs:signal_reaper on 2 ranks: "
        r"its reaper, the process that ends the ranks, died \(exit code -9\)$",
    ),
    Fault(
        "the group's reaper is suspended",
        "signal_reaper",
        (int(signal.SIGSTOP),),
        ends="normally",
    ),
    # --- nothing is wrong ---
    Fault("stdout and stderr are closed", "lose_streams", ("close",), ends="normally"),
    Fault("descriptors 1 and 2 are closed", "lose_streams", ("descriptor",), ends="normally"),
    Fault("`sys.stdout = sys.stderr = None`", "lose_streams", ("none",), ends="normally"),
    Fault(
        "stdout and stderr are objects without `flush`",
        "lose_streams",
        ("object",),
        ends="normally",
    ),
    Fault("a rank is suspended for a second", "stop_and_continue", ends="normally"),
    Fault(
        "a rank does nothing for 8 s while others wait for it in calls of many kinds",
        "be_slow",
        ends="normally",
        world_size=5,
    ),
    Fault(
        "all ranks receive, and a thread of one sends after 8 s",
        "send_from_a_thread",
        ends="normally",
    ),
    Fault("a rank's data loader takes 8 s", "load_slowly", ends="normally"),
]

_WHEN = {
    "at once": "at once",
    "after seconds": "after 3 to 6 idle seconds",
    "timeout": "at the timeout",
    "normally": "when its ranks are done",
}


def headline_pattern(fault: Fault, launcher: str) -> list[str]:
    """What the message must match: the headline from its start, the rest anywhere."""
    says = list(fault.says) or [re.escape(fault.shown)]
    if launcher == "torchrun" and fault.under_torchrun:
        says[0] = fault.under_torchrun
    return [say.replace("{file}", r"\S*fault_programs\.py") for say in says]


def table() -> str:
    """The rows as Markdown: a table of the faults, and a list of what is not a fault."""
    faults = [f for f in FAULTS if f.ends != "normally"]
    lines = [
        "| fault, in rank 1 unless it says otherwise | the failure's first line | the group ends |",
        "|---|---|---|",
    ]
    for each in faults:
        shown = each.shown.replace("|", "\\|")
        lines.append(f"| {each.fault} | `{shown}` | {_WHEN[each.ends]} |")
    lines += ["", "These groups succeed, and are not ended early:", ""]
    lines += [f"- {each.fault}" for each in FAULTS if each.ends == "normally"]
    return "\n".join(lines)


def written(text: str) -> str:
    """The page with its table generated again."""
    start, end = "<!-- faults: begin -->\n", "\n<!-- faults: end -->"
    before, _, rest = text.partition(start)
    return before + start + table() + end + rest.partition(end)[2]


if __name__ == "__main__":
    DOCS.write_text(written(DOCS.read_text()))
