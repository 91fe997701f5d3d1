"""The page of a group that failed names the ranks that are wrong, and no rank that ended well."""

from __future__ import annotations

from pathlib import Path

from pytest_trainsafe.launch.failure import headline
from pytest_trainsafe.launch.result import GroupResult, RankResult, Status
from pytest_trainsafe.report.html.ranks import rank_panels
from pytest_trainsafe.report.panels import Table

#: The stack of a rank that waits in a collective.
WAITS = """\
Current thread 0x01 (most recent call first):
  File "{torch}/distributed/distributed_c10d.py", line 9 in all_reduce
  File "/me/train.py", line {line} in train
"""


def group(folder: Path, *ranks: tuple[Status, int]) -> GroupResult:
    """The result of ranks with a status and the line at which each stood."""
    import torch

    home = Path(torch.__file__).parent
    return GroupResult(
        task="train",
        folder=folder,
        ranks=tuple(
            RankResult(
                rank=number,
                status=status,
                folder=folder,
                stack=WAITS.format(torch=home, line=line) if status == "hung" else "",
            )
            for number, (status, line) in enumerate(ranks)
        ),
        seconds=1.0,
        timeout=5.0,
    )


def parts(result: GroupResult) -> list[object]:
    table = next(each for each in rank_panels(result) if isinstance(each, Table))
    return [row[2] for row in table.rows]


def test_a_rank_that_had_finished_is_said_to_have_and_is_not_odd(tmp_path: Path) -> None:
    result = group(tmp_path, ("hung", 7), ("ok", 0), ("hung", 7))
    assert parts(result) == ["", "had finished: the others wait in vain", ""]
    assert "rank 1 had finished, so the others wait in vain" in headline(result)
    assert "odd one out" not in headline(result)


def test_a_rank_that_waits_elsewhere_is_the_odd_one_out(tmp_path: Path) -> None:
    result = group(tmp_path, ("hung", 7), ("hung", 9), ("hung", 7))
    assert parts(result) == ["", "the odd one out", ""]
    assert "rank 1 is the odd one out" in headline(result)
