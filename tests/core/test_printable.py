"""Text that a program chose shows itself in a terminal or a CI log, and does nothing else."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_trainsafe.errors import TraceError, TrainsafeWarning, UnknownAxisError
from pytest_trainsafe.printable import printable, printable_line

#: What is dangerous, often.
PIECES = st.sampled_from(
    [
        *("\x1b[31m", "\x1b]0;t\x07", "\x9b2J", "\r", "\r\n", "\n", "\t", " ", "::error::x", ":"),
        *("##[", "#", "\u202e", "\u2066", "\u2028", "\x85", "\ud800", "\udcff", "\u200b", "w", "é"),
    ]
)


@given(st.text(st.characters(codec=None)) | st.lists(PIECES).map("".join))
def test_any_text_becomes_ordinary_text_without_commands(text: str) -> None:
    plain = printable(text)

    assert plain.encode().decode() == plain
    assert plain.replace("\n", "").replace("\t", "").isprintable()
    assert "##[" not in plain
    assert not [line for line in plain.split("\n") if line.strip().startswith("::")]
    assert printable(plain) == plain
    assert printable_line(text).isprintable()


@pytest.mark.parametrize(
    "text",
    [
        "größer als 名前, naïve 🙂, ≤ 3·10⁻⁶",
        "two lines\n\tand an indented third\n",
        "test_gpt.py::test_it[tp2] fails: std::vector, a::b, #1 ## [x]",
        r"C:\new\table and a literal \x1b",
    ],
)
def test_ordinary_text_is_kept(text: str) -> None:
    assert printable(text) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31mred\x1b]0;title\x07", r"\x1b[31mred\x1b]0;title\x07"),
        ("a\r::error::b", r"a\r::error::b"),
        ("a\r\n \t::error::b", "a\n \t\\x3a:error::b"),
        ("a ##[error]b", r"a \x23#[error]b"),
        ("\u202eabc\u2066", r"\u202eabc\u2066"),
        ("\ud800", r"\ud800"),
    ],
)
def test_what_is_not_ordinary_is_escaped_as_python_does(text: str, shown: str) -> None:
    assert printable(text) == shown


@pytest.mark.parametrize("kind", [TraceError, TrainsafeWarning, UnknownAxisError])
def test_errors_and_warnings_escape_their_text(kind: type[Exception]) -> None:
    text = str(kind("a module \x1b[2Jé\n::error::x"))

    assert text == "a module \\x1b[2Jé\n\\x3a:error::x"
    assert not re.search("[\x00-\x09\x0b-\x1f]", text)
