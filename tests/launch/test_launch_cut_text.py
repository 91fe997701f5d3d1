"""Whatever the text of a rank's exception, the reported text is encodable, bounded and readable."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from pytest_trainsafe.core.cut_text import ERROR_LIMIT, MESSAGE_LIMIT, TRACEBACK_LIMIT, cut
from pytest_trainsafe.launch.failure import message, signal_name
from pytest_trainsafe.launch.files import read_end
from pytest_trainsafe.launch.result import GroupResult, RankResult
from pytest_trainsafe.launch.supervise.error_text import error_text, own_text, type_name

HUGE = 3_000_000


def raised(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as caught:
        return caught


def test_a_cut_text_says_how_many_characters_are_missing() -> None:
    text = cut("a" * 60 + "b" * 60, 30)
    assert text == f"{'a' * 20} [... 90 characters cut ...] {'b' * 10}"
    assert cut("a" * 30, 30) == "a" * 30


def test_huge_texts_of_an_error_its_cause_and_its_notes_are_cut() -> None:
    error = ValueError("x" * HUGE)
    error.__cause__ = raised(KeyError("y" * HUGE))
    error.add_note("z" * HUGE)
    text = error_text(raised(error))
    assert len(text) < TRACEBACK_LIMIT
    assert text.count("characters cut") == 3
    assert len(own_text(error)) < ERROR_LIMIT + 100


class Awkward(Exception):
    """Its `__str__` raises its argument."""

    def __str__(self) -> str:
        raise self.args[0]


@pytest.mark.parametrize("inner", [ValueError(), RecursionError(), SystemExit(), MemoryError()])
def test_an_exception_whose_str_raises_is_shown_with_that_error_and_its_place(
    inner: BaseException,
) -> None:
    error = raised(Awkward(inner))
    assert own_text(error).startswith(
        f"(its text is unknown: __str__ raised {type_name(inner)}) at {__file__}:"
    )


def test_lone_surrogates_are_escaped() -> None:
    error = raised(ValueError("\udcff and \ud800"))
    assert own_text(error) == "\\udcff and \\ud800"
    error_text(error).encode()


def test_an_assertion_without_text_is_shown_as_its_source_line() -> None:
    try:
        assert len(str(HUGE)) == (0)
    except AssertionError as error:
        error.args = ()  # pytest has given it a text
        text = own_text(error)
    assert text.startswith("assert len(str(HUGE)) == (")
    assert f" at {__file__}:" in text


class Deep(torch.nn.Module):
    """Modules within modules, of which the innermost raises."""

    def __init__(self, depth: int) -> None:
        super().__init__()
        self.inner = Deep(depth - 1) if depth else None

    @torch.no_grad()
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.inner is None:
            raise ValueError("innermost")
        result: torch.Tensor = self.inner(x)
        return result


def test_frames_of_torch_s_wrappers_are_left_out_of_a_traceback() -> None:
    with pytest.raises(ValueError, match="innermost") as caught:
        Deep(8)(torch.ones(1))
    text = error_text(caught.value)
    for wrapper in ("_wrapped_call_impl", "_call_impl", "decorate_context"):
        assert wrapper not in text
    assert "result: torch.Tensor = self.inner(x)" in text
    assert 'raise ValueError("innermost")' in text


def test_an_error_that_torch_itself_raises_keeps_the_frame_that_raised() -> None:
    model = torch.nn.Linear(2, 2)
    with pytest.raises(RuntimeError) as caught:
        model(torch.ones(3))
    assert "in forward" in error_text(caught.value)


def test_the_end_of_a_file_says_how_many_bytes_come_before_it(tmp_path: Path) -> None:
    path = tmp_path / "stderr.txt"
    path.write_text("one\ntwo\nthree\n")
    assert read_end(path) == "one\ntwo\nthree\n"
    assert read_end(path, 8) == "[... 6 bytes before this are in stderr.txt ...]\nthree\n"
    path.write_text("x" * 100)  # one line, whose start is cut
    assert read_end(path, 8) == f"[... 92 bytes before this are in stderr.txt ...]\n{'x' * 8}"


def test_the_message_of_a_failure_is_bounded_however_long_the_errors_are(tmp_path: Path) -> None:
    ranks = tuple(
        RankResult(
            rank=rank,
            status="raised",
            folder=tmp_path,
            error_type="ValueError",
            error="x" * HUGE,
            traceback="t\n" * HUGE,
            stderr="s" * HUGE,
        )
        for rank in range(4)
    )
    result = GroupResult(
        task="t", folder=tmp_path, ranks=ranks, seconds=1, timeout=9, first_failed=2
    )
    text = message(result)
    assert len(text) < MESSAGE_LIMIT
    assert text.startswith("rank 2 of 4 raised ValueError: xxx")
    assert "characters cut" in text.splitlines()[0]


def test_a_long_traceback_is_cut_between_the_program_s_lines_and_the_error(tmp_path: Path) -> None:
    lines = "\n".join(f"line {number}" for number in range(100))
    rank = RankResult(
        rank=0, status="raised", folder=tmp_path, error_type="E", error="e", traceback=lines
    )
    result = GroupResult(
        task="t", folder=tmp_path, ranks=(rank,), seconds=1, timeout=9, first_failed=0
    )
    said = [line.strip() for line in message(result).splitlines()]
    start = said.index("line 0")
    assert said[start + 19 : start + 22] == ["line 19", "... 40 more lines", "line 60"]
    assert said[start + 60] == "line 99"


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (9, "SIGKILL"),
        (34, "SIGRTMIN"),
        (40, "SIGRTMIN+6"),
        (64, "SIGRTMAX"),
        (33, "a signal of the C library"),
    ],
)
def test_every_signal_has_a_name(number: int, expected: str) -> None:
    assert signal_name(number) == expected
