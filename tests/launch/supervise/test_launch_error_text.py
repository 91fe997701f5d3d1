"""A rank's error shows the program's frames; an error that the plugin raises shows only these."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

from pytest_trainsafe.annotations.entries import AnnotationError
from pytest_trainsafe.launch.failure import in_one_line, message, raised, raised_at, reason
from pytest_trainsafe.launch.result import GroupResult, RankResult, Status
from pytest_trainsafe.launch.supervise.error_text import error_text, own_text
from pytest_trainsafe.record import program
from pytest_trainsafe.record.assignment import Assignment
from pytest_trainsafe.record.clock import ProgramError
from pytest_trainsafe.record.context import Context
from pytest_trainsafe.trace.run_spec import RunSpec
from pytest_trainsafe.trace.writer import manifest_of, write_manifest


def leave_step_out(ctx: Context) -> None:
    with ctx.microbatch(0):
        pass


def misspell(ctx: Context) -> None:
    ctx.initialize(None, annotations={"modul": {}})  # type: ignore[arg-type]


def fail_in_torch(ctx: Context) -> None:
    import torch

    with ctx.step():  # refused: nothing is watched
        pass
    torch.ones(2) @ torch.ones(3)


def divide(ctx: Context) -> None:
    print(1 // 0)


def do_nothing(ctx: Context) -> None:
    pass


def text_of(tmp_path: Path, train: Any) -> tuple[BaseException, str]:
    spec = RunSpec(program=f"{__name__}:{train.__name__}", file=__file__, dtype="float32")
    write_manifest(tmp_path, manifest_of(spec, "cpu"))
    with pytest.raises(Exception) as caught:
        program.record(Assignment(spec=spec, trace=str(tmp_path)), train)
    error = caught.value
    # Start at the frame that is the first in a rank.
    assert error.__traceback__ is not None
    return error, error_text(error.with_traceback(error.__traceback__.tb_next))


@pytest.mark.parametrize(
    ("train", "kind", "line"),
    [
        (leave_step_out, ProgramError, "with ctx.microbatch(0):"),
        (misspell, AnnotationError, "ctx.initialize(None"),
        (fail_in_torch, ProgramError, "with ctx.step():"),
        (do_nothing, ProgramError, "def do_nothing(ctx: Context)"),  # no line of it is at fault
    ],
)
def test_misuse_shows_only_the_line_of_the_program(
    tmp_path: Path, train: Any, kind: type, line: str
) -> None:
    error, text = text_of(tmp_path, train)
    assert type(error) is kind
    assert line in text
    assert text.count("File ") == 1
    assert "pytest_trainsafe" not in text.replace(str(Path(__file__).parent), "")
    assert str(error) not in text  # the headline says it


def test_an_error_of_the_program_is_shown_in_full_without_frames_of_the_plugin(
    tmp_path: Path,
) -> None:
    _, text = text_of(tmp_path, divide)
    assert text.endswith("ZeroDivisionError: integer division or modulo by zero\n")
    assert "print(1 // 0)" in text
    assert "record/program.py" not in text


def test_ranks_that_raised_the_same_error_share_one_line(tmp_path: Path) -> None:
    ranks = tuple(
        RankResult(
            rank=rank,
            status="raised",
            folder=tmp_path,
            error_type="ProgramError",
            error="ctx.watch was called twice" if rank != 2 else "another",
            traceback="  File train.py\n",
        )
        for rank in range(4)
    )
    result = GroupResult(
        task="t", folder=tmp_path, ranks=ranks, seconds=1.0, timeout=9.0, first_failed=1
    )
    lines = message(result).splitlines()
    assert lines[0] == "rank 1 of 4 raised ProgramError: ctx.watch was called twice"
    assert "ranks 0, 3 raised the same error" in lines
    assert "rank 2 of 4 raised ProgramError: another" in lines
    assert sum("called twice" in line for line in lines) == 1


@pytest.mark.parametrize(
    ("error", "place", "line"),
    [
        ("/p/layouts.yaml:3: `a` is", "/p/layouts.yaml:3", "raised E at /p/layouts.yaml:3: `a` is"),
        ("at /p/layouts.yaml:3: no", "/p/fit.py:7", "raised E at /p/fit.py:7: at /p/layouts.yaml"),
    ],
)
def test_an_error_that_begins_with_a_line_of_a_file_is_raised_there(
    tmp_path: Path, error: str, place: str, line: str
) -> None:
    rank = RankResult(
        rank=0, status="raised", folder=tmp_path, error_type="E", error=error,
        traceback='  File "/p/fit.py", line 7, in fit\n    ctx.watch(net)\n',
    )  # fmt: skip
    result = GroupResult(
        task="t", folder=tmp_path, ranks=(rank,), seconds=1.0, timeout=9.0, first_failed=0
    )
    assert raised_at(result) == place
    assert line in in_one_line(result)


def test_an_assertion_of_a_framework_is_shown_with_the_program_s_line(tmp_path: Path) -> None:
    file = tmp_path / "site-packages" / "framework.py"
    file.parent.mkdir()
    file.write_text("def check(size):\n    assert size % 2 == 0\n")
    functions = runpy.run_path(str(file))

    def train() -> None:
        functions["check"](3)

    with pytest.raises(AssertionError) as caught:
        train()
    caught.value.args = ()  # no text, as in a rank, where pytest does not rewrite it
    line = train.__code__.co_firstlineno + 1
    assert own_text(caught.value) == (
        f"assert size % 2 == 0 at {file}:2, called from {__file__}:{line}"
    )


def test_the_reason_of_a_failure_names_the_program_s_line(tmp_path: Path) -> None:
    frames = (
        'Traceback (most recent call last):\n  File "/home/me/train.py", line 12, in train\n'
        '    step()\n  File "/venv/lib/site-packages/framework.py", line 7, in step\n    stop()\n'
    )

    def result(status: Status = "raised", **others: Any) -> GroupResult:
        ranks = [
            RankResult(
                rank=rank,
                status=status if rank == 0 else "stopped",
                folder=tmp_path,
                error_type="TypeError",
                error="no kernel",
                traceback=frames,
            )
            for rank in range(2)
        ]
        return GroupResult(
            task="t",
            folder=tmp_path,
            ranks=tuple(ranks),
            seconds=1.0,
            timeout=9.0,
            first_failed=0,
            **others,
        )

    assert reason(result()) == "rank 0 of 2 raised TypeError: no kernel, at /home/me/train.py:12"
    assert raised(result()) == {("TypeError", "no kernel")}
    assert raised(result("died")) == raised(result("hung")) == frozenset()
    assert raised(result(mismatches=("ranks disagree",))) == frozenset()
