"""Annotations and job summaries keep GitHub's limits; text of a program injects no commands."""

from __future__ import annotations

import html
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_trainsafe.config.settings import Settings
from pytest_trainsafe.report.rerun import NO_RUN
from pytest_trainsafe.report.run.escape import command_data, command_property, markdown
from pytest_trainsafe.report.run.families import families
from pytest_trainsafe.report.run.github import error_commands, is_wanted, job_summary, place_of
from pytest_trainsafe.report.run.outcome import FirstDifference, Outcome

HOSTILE = (
    "w|x`y`<img src=x onerror=y>\n::error::z\r\n::stop-commands::t\x1b[31m"
    "[a](javascript:b) @someone #1 **c** %0A::warning::d </code></pre>&lt;"
)


def failure(number: int, text: str = "w", source: str = "/w/models/norm.py:41") -> Outcome:
    first = FirstDifference(
        check="c",
        where=f"{text}{number} · step 0",
        tensor=f"{text}{number}",
        pattern=f"partial sums {text}",
        pattern_name="sum",
        cause=f"an all-reduce is missing {text}",
        error=0.5,
        allowed=1e-14,
        dtype="float64",
        source=source,
    )
    return Outcome(
        f"test_{number}.py::t[{text}]",
        "fail",
        failed=True,
        program=f"gpt{text}",
        point=f"tp={text}",
        axes=(("tp", text), (text, "2")),
        tensors=(3,),
        worst=2.0,
        worst_name=text,
        first=first,
        location=f"tests/test_{number}.py:7",
    )


def commands(found: list[Outcome]) -> list[str]:
    return error_commands(families(found), Path("/w"), Path("/w"))


def test_an_annotation_is_on_the_line_of_the_first_wrong_module() -> None:
    (line,) = commands([failure(1)])

    command, _, message = line.removeprefix("::").partition("::")
    assert command == ("error file=models/norm.py,line=41,title=trainsafe%3A gptw%3A w1")
    assert message.split("%0A") == [
        "first wrong: w1 · step 0",
        "error: 5.0e-01 in float64, rounding allows 1.0e-14",
        "pattern: partial sums w",
        "so: an all-reduce is missing w",
        "1 point: tp=w",
        "rerun: pytest 'test_1.py::t[w]'",
    ]


@pytest.mark.parametrize("source", ["", "/elsewhere/torch/x.py:3", "the backward pass", "a:b"])
def test_code_outside_of_the_repository_is_annotated_at_the_test(source: str) -> None:
    (line,) = commands([failure(1, source=source)])

    assert line.startswith("::error file=tests/test_1.py,line=7,")


def test_a_step_has_at_most_ten_annotations_and_says_how_many_are_left_out() -> None:
    ten = commands([failure(number) for number in range(10)])
    many = commands([failure(number) for number in range(30)])

    assert [line.split()[0] for line in ten] == ["::error"] * 10
    assert [line.split()[0] for line in many] == ["::error"] * 9 + ["::notice"]
    assert many[-1].endswith("::21 more causes of failures: see the summary of the job")


def test_text_of_a_program_cannot_end_or_begin_a_workflow_command() -> None:
    (line,) = commands([failure(1, HOSTILE, source=f"/w/{HOSTILE}.py:3")])

    assert line.count("::") == line.partition("::")[2].count("::") + 1
    properties = line.removeprefix("::error ").partition("::")[0]
    assert [each.partition("=")[0] for each in properties.split(",")] == ["file", "line", "title"]
    assert not re.search(r"[\r\n\x1b]", line)


@given(st.text())
def test_escaped_text_of_a_command_is_one_line_without_separators(text: str) -> None:
    data, value = command_data(text), command_property(text)

    assert len((data + value).splitlines()) <= 1
    assert ":" not in value
    assert "," not in value
    back = value.replace("%3A", ":").replace("%2C", ",")
    assert back == data


class _Tags(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.append(tag)


@given(st.text() | st.text("&#x27;<>'\"|`*_\\ ab"))
def test_escaped_markdown_text_has_no_markup(text: str) -> None:
    made = markdown(text)

    assert _Tags(made).tags == []
    plain = re.sub(r"&#?\w+;", "", made)
    assert not set(plain) & set("<>|`*_[]()\\~@#:!\n\r")
    if text.isprintable():
        assert html.unescape(made) == text


def test_the_summary_of_hostile_names_is_a_table_of_plain_cells() -> None:
    found = [failure(1, HOSTILE), failure(2)]

    text = job_summary(found, families(found), Path("/w"))

    assert set(_Tags(text).tags) == {"code"}
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert rows
    assert all(line.startswith(("#", "|")) or not line for line in text.splitlines())
    assert {line.count("|") for line in rows} <= {3, 7, 8}
    assert "\x1b" not in text


def test_a_summary_stays_below_the_limit_and_says_that_it_is_truncated() -> None:
    found = [failure(number, "é" * 300) for number in range(400)]

    text = job_summary(found, families(found), Path("/w"), NO_RUN, 50_000)

    assert 40_000 < len(text.encode()) <= 50_000
    assert text.endswith(
        "The summary is cut here: it would be too long for GitHub. See the job's log.\n"
    )
    assert job_summary(found, families(found), Path("/w"), NO_RUN, 10) == ""


@pytest.mark.parametrize(
    ("when", "environ", "expected"),
    [
        ("auto", {}, False),
        ("auto", {"GITHUB_ACTIONS": "true"}, True),
        ("off", {"GITHUB_ACTIONS": "true"}, False),
        ("on", {}, True),
    ],
)
def test_github_reports_are_written_by_default_only_in_github_actions(
    when: str, environ: dict[str, str], expected: bool
) -> None:
    assert is_wanted(Settings(github=when), environ) is expected


def test_only_lines_of_files_in_the_workspace_can_be_annotated() -> None:
    workspace = Path("/w")

    assert place_of("/w/a/../b.py:0", workspace) == ("b.py", "1")
    for outside in ("/w/../b.py:3", "/v/b.py:3", "b.py", "/w/b.py:x", "/w/b\0.py:1"):
        assert place_of(outside, workspace) is None, outside
