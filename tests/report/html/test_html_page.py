"""The page is one file without a network; it costs nothing unless it is asked for."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from pytest_trainsafe.__main__ import main
from pytest_trainsafe.report.html import extra
from pytest_trainsafe.report.html.document import Document, merged, read_document
from pytest_trainsafe.report.html.fit import fitted
from pytest_trainsafe.report.html.page import page_of
from pytest_trainsafe.report.html.write import write_page
from pytest_trainsafe.report.panels import Maps
from tests.support.report.documents import document_with, entry_with

#: Judges what `report/html` knows nothing of, and makes panels without a trace.
TESTS = """
import pytest
from pytest_trainsafe import TrainsafeFailure
from pytest_trainsafe.core.finding import Finding, RankSubject
from pytest_trainsafe.judges.contract import FindingsJudgement
from pytest_trainsafe.judges.sections import show

def judged(number):
    finding = Finding(
        verdict="fail", judge="own", check="own:value", message=f"value {number} <b>",
        subject=RankSubject(number), evidence=(("number", number),),
    )
    show(FindingsJudgement("own", [finding]), f"report {number}")
    return finding

@pytest.mark.trainsafe("program:train", layers=[2, 8, 10])
def test_layers(trainsafe):
    number = dict(trainsafe.point)["layers"]
    if number != 2:
        raise TrainsafeFailure(f"report {number}", [judged(number)], f"value {number}")

def test_unmarked():
    judged(5)

def test_plain():
    pass
"""


@pytest.fixture
def judging(project: pytest.Pytester) -> pytest.Pytester:
    project.makepyfile(test_judging=TESTS)
    return project


def entries(folder: Path) -> dict[str, dict]:
    """The entries of a page's data without what differs from run to run, by node id."""
    document = msgspec.to_builtins(read_document(folder))
    for entry in document["entries"]:
        entry["outcome"].pop("seconds")
        entry.pop("run")
    return {entry["outcome"]["nodeid"]: entry for entry in document["entries"]}


def test_without_the_option_nothing_is_written_collected_or_imported(judging) -> None:
    judging.makeconftest(
        """
        import sys
        def pytest_runtest_logreport(report):
            assert not hasattr(report, "trainsafe_sections")
        def pytest_unconfigure():
            names = ("jinja2", "pytest_trainsafe.report.html")
            open("modules.txt", "w").write(" ".join(n for n in names if n in sys.modules))
        """
    )
    judging.runpytest_subprocess().assert_outcomes(passed=3, failed=2)

    assert not [*judging.path.rglob("index.html"), *judging.path.rglob("report.json")]
    assert (judging.path / "modules.txt").read_text() == ""


@pytest.mark.usefixtures("_torch")
@pytest.mark.parametrize("options", [[], ["-n", "1"]])
def test_sections_reach_the_page_also_from_workers(judging, options: list[str]) -> None:
    result = judging.runpytest_inprocess("--trainsafe-report=out", *options)

    result.assert_outcomes(passed=3, failed=2)
    assert result.stdout.str().count("page: out/index.html") == 1
    found = entries(judging.path / "out")
    assert list(found) == [
        *(f"test_judging.py::test_layers[layers{n}]" for n in (8, 10)),
        "test_judging.py::test_unmarked",
    ]
    [section] = found["test_judging.py::test_layers[layers8]"]["sections"]
    assert (section["judge"], section["verdict"], section["text"]) == ("own", "fail", "report 8")
    [table, evidence] = section["panels"]
    assert [*table["rows"]] == [("rank 8", "own:value", "value 8 <b>")]
    assert [*evidence["rows"]] == [("number", 8)]
    assert "value 8 <b>" not in (judging.path / "out" / "index.html").read_text()


@pytest.mark.usefixtures("_torch")
def test_a_merge_of_shards_is_the_page_of_one_run(judging, monkeypatch) -> None:
    judging.runpytest_inprocess("--trainsafe-report=whole")
    for shard in (1, 2):
        judging.runpytest_inprocess(f"--trainsafe-report=s{shard}", f"--trainsafe-shard={shard}/2")
    monkeypatch.chdir(judging.path)

    assert main(["report", "merge", "s1", "s2", "--output", "merged"]) == 0

    assert entries(judging.path / "merged") == entries(judging.path / "whole")
    assert len(entries(judging.path / "whole")) == 3
    pages = [page_families(judging.path / name) for name in ("merged", "whole")]
    assert pages[0] == pages[1]
    assert pages[0]


def page_families(folder: Path) -> list[dict]:
    text = (folder / "index.html").read_text(encoding="utf-8")
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    assert found is not None
    families: list[dict] = json.loads(found[1])["families"]
    return families


def test_a_merge_names_what_it_cannot_read(judging, monkeypatch, capsys) -> None:
    write_page(document_with(("a",)), judging.path / "good")
    damaged = {"bad": b'{"format": "another 1"}', "cut": b'{"format":', "bin": b"\xff"}
    for name, content in damaged.items():
        (judging.path / name).mkdir()
        (judging.path / name / "report.json").write_bytes(content)
    monkeypatch.chdir(judging.path)

    assert main(["report", "merge", "bad", "cut", "bin", "none", "good", "--output", "m"]) == 2

    said = capsys.readouterr()
    assert all(f"{name}/report.json" in said.err for name in (*damaged, "none"))
    advice = "pass directories that --trainsafe-report of this version has written"
    assert said.err.count(advice) == 4
    assert "page: m/index.html" in said.out
    assert main(["report", "merge", "none"]) == 2


def test_a_missing_extra_is_a_usage_error_that_names_the_package(judging, monkeypatch) -> None:
    judging.makeconftest(
        """
        from pytest_trainsafe.report.html import extra
        extra._NEEDED = ("jinja2", "no_such_package")
        """
    )
    result = judging.runpytest_subprocess("-p", "conftest", "--trainsafe-report=out")

    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(
        ["*--trainsafe-report needs no_such_package*pip install 'pytest-trainsafe[[]report[]]'"]
    )
    assert extra._NEEDED == ("jinja2",)


def test_the_policy_of_a_page_allows_its_own_script_and_style_alone() -> None:
    text = page_of(document_with(("plain",)))
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)
    assert policy is not None
    directives = dict(each.strip().split(" ", 1) for each in policy[1].split(";"))

    assert directives["default-src"] == "'none'"
    assert not re.search("unsafe|https?:|\\*", policy[1])
    script, style = (
        re.search(r"<script>(.*?)</script>", text, re.DOTALL),
        re.search(r"<style>(.*?)</style>", text, re.DOTALL),
    )
    for found, name in ((script, "script-src"), (style, "style-src")):
        assert found is not None
        digest = base64.b64encode(hashlib.sha256(found[1].encode()).digest()).decode()
        assert directives[name] == f"'sha256-{digest}'"
    assert not re.search(r"\b(src|href)=[\"']?https?:", text)


def test_panels_that_do_not_fit_are_left_out_of_shared_failures_first() -> None:
    document = document_with(("a", "b"))
    same = [entry_with("a", number) for number in range(6)]
    passed = entry_with("p", 9)
    passing = msgspec.structs.replace(
        passed, outcome=replace(passed.outcome, verdict="pass", failed=False)
    )
    document = msgspec.structs.replace(document, entries=(*same, passing))
    size = len(msgspec.json.encode(document))

    assert fitted(document, size) is document
    smaller = fitted(document, int(size * 0.7))
    assert len(msgspec.json.encode(smaller)) <= size * 0.7
    maps = [any(isinstance(p, Maps) for p in e.sections[0].panels) for e in smaller.entries]
    assert maps == [True, *[False] * 6]
    assert smaller.entries[6].sections[0].notes[0].endswith("because the page was too large")
    least = fitted(document, 1)
    assert all(e.sections[0].panels == () for e in least.entries)


def test_merged_runs_keep_their_own_settings() -> None:
    first, second = document_with(("a",)), document_with(("b",))
    both = merged([second, first])

    assert [entry.outcome.point for entry in both.entries] == ["a", "b"]
    assert [both.runs[entry.run].options for entry in both.entries] == ["a", "b"]
    assert isinstance(both, Document)


ODD = """
import dataclasses
import pytest
from pytest_trainsafe.core.finding import Finding, RankSubject
from pytest_trainsafe.judges.contract import FindingsJudgement
from pytest_trainsafe.judges.sections import show
from pytest_trainsafe.report.panels import Table

class Raises(FindingsJudgement):
    panels = "no.such.module"

@pytest.mark.parametrize("kind", ["raises", "large", "escapes"])
def test_odd(kind):
    names = {"judge": "own", "what": "w" * 5_000}
    if kind == "raises":
        show(Raises(**names), "")
    elif kind == "large":
        table = Table(title="t" * 1_000, rows=((1,),) * 5_000)
        show(FindingsJudgement(**names, drawn=[table]), "")
    else:
        message = "\\x1b\\udc80" * 50_000
        finding = Finding(verdict="fail", judge="own", check="c", message=message)
        show(FindingsJudgement("j" * 900, [finding], [message]), message)
"""


@pytest.mark.usefixtures("_torch")
def test_what_a_judge_cannot_show_changes_no_verdict(judging) -> None:
    judging.makepyfile(test_judging=ODD)
    judging.runpytest_inprocess("--trainsafe-report=out").assert_outcomes(passed=3)

    sections = {
        nodeid.partition("[")[2].rstrip("]"): entry["sections"][0]
        for nodeid, entry in entries(judging.path / "out").items()
    }
    assert "no panels: ModuleNotFoundError" in sections["raises"]["notes"][0]
    assert "no panels: " in sections["large"]["notes"][0]
    escapes = sections["escapes"]
    assert escapes["text"].startswith("\\x1b\\udc80\\x1b")
    assert escapes["panels"][0]["rows"][0][2].startswith("\\x1b\\udc80")
