"""A line that sums the wrong gradients alone is known with its axes."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_trainsafe.judges.compare.localize.gradients import summed_at
from pytest_trainsafe.trace.facts import Reduction
from tests.support.compare.traces import training, write

LINE = "/me/grads.py:41"
MADE = Reduction("all_reduce(SUM)", ("tp",), "/me/talk.py:3", LINE, 16)


@pytest.mark.parametrize(
    ("made", "wrong", "axes"),
    [
        ([MADE], "fc1.bias", ("tp",)),
        ([Reduction("all_reduce(SUM)", ("tp",), LINE, "", 16)], "fc1.bias", ("tp",)),
        ([MADE, Reduction("all_reduce(SUM)", ("dp",), "/me/talk.py:3", LINE, 16)], "fc1.bias", ()),
        ([Reduction("all_reduce(SUM)", ("tp",), "/me/talk.py:3", LINE, 500)], "fc1.bias", ()),
        ([Reduction("all_reduce(SUM)", ("tp",), "/me/talk.py:3", LINE)], "fc1.bias", ()),
        ([Reduction("all_reduce(MAX)", ("tp",), "/me/talk.py:3", LINE, 16)], "fc1.bias", ()),
        ([MADE], "fc1.weight", ()),
        ([], "fc1.bias", ()),
    ],
)
def test_only_a_line_that_sums_nothing_else_has_axes(
    made: list[Reduction], wrong: str, axes: tuple[str, ...], tmp_path: Path
) -> None:
    trace = write(tmp_path, training(steps=1))

    assert summed_at(trace, made, [("reduction", wrong)], LINE) == axes
    assert summed_at(trace, made, [("backward", wrong)], LINE) == ()
    every = [("reduction", id.path) for id in trace.ids() if id.kind == "param"]
    assert summed_at(trace, made, every, LINE) == ()
