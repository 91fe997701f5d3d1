"""JUnit files of several shards make one report; invalid files are errors."""

from __future__ import annotations

import json
from pathlib import Path
from xml.sax.saxutils import quoteattr

import pytest

from pytest_trainsafe.errors import SettingError
from pytest_trainsafe.report.__main__ import main
from pytest_trainsafe.report.run.junit import read_junit


def case(point: str, verdict: str, root: str = "/runner/repo") -> str:
    """A test of a JUnit file as a shard writes it."""
    name = point.replace("=", "").replace(" ", "-")
    summary: dict[str, object] = {
        "point": point,
        "verdict": verdict,
        "program": "gpt.train",
        "axes": dict(word.split("=") for word in point.split()),
        "rungs": [{"dtype": "float64", "tensors": 3, "worst": 0.5, "worst_name": "w"}],
    }
    if verdict == "fail":
        first = {"judge": "compare", "check": "c", "where": "w · step 0", "pattern": ""}
        summary["first"] = {**first, "tensor": "w", "source": f"{root}/model.py:4"}
    properties = {
        "trainsafe_id": f"tests/test_a.py::t[{name}]",
        "trainsafe_location": "tests/test_a.py:7",
        "trainsafe_root": root,
        "trainsafe_point": point,
        "trainsafe": json.dumps(summary),
    }
    listed = "".join(
        f"<property name={quoteattr(key)} value={quoteattr(value)}/>"
        for key, value in properties.items()
    )
    failed = '<failure message="AssertionError: it differs"/>' if verdict == "fail" else ""
    return f'<testcase name="t" time="2.5"><properties>{listed}</properties>{failed}</testcase>'


def junit(path: Path, *cases: str) -> Path:
    path.write_text(f"<testsuites><testsuite>{''.join(cases)}</testsuite></testsuites>")
    return path


def test_the_merged_report_of_all_shards_narrows_the_failing_condition(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    one = junit(tmp_path / "1.xml", case("tp=2 cp=2", "fail"), case("tp=1 cp=1", "pass"))
    two = junit(tmp_path / "2.xml", case("tp=2 cp=1", "pass"), case("tp=1 cp=2", "pass"))
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary.md"))

    assert main([str(one), str(two), "--root", str(tmp_path)]) == 0

    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("::error file=model.py,line=4,title=trainsafe%3A gpt.train%3A w::")
    assert "axes: fails where tp >= 2 and cp >= 2; 3 other points pass" in line
    assert "rerun: pytest 'tests/test_a.py::t[tp2-cp2]'" in line
    text = (tmp_path / "summary.md").read_text()
    assert text.startswith("## trainsafe: 1 failed of 4 points\n")

    main([str(one), "--root", str(tmp_path)])
    # Alone, the first shard shows as much for tp as for cp.
    assert "fails where" not in capsys.readouterr().out


def test_tests_without_trainsafe_properties_are_left_out(tmp_path: Path) -> None:
    path = junit(tmp_path / "1.xml", '<testcase name="t" time="nan"/>', case("tp=2", "pass"))

    (report,) = read_junit(path, tmp_path)

    assert (report.outcome, report.duration) == ("passed", 2.5)
    assert report.location == ("tests/test_a.py", 6, "t")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is not a JUnit file"),
        (b"<testsuites>", "is not a JUnit file"),
        (b'<?xml version="1.0" encoding="nothing"?><a/>', "is not a JUnit file"),
        (b'<!DOCTYPE a [<!ENTITY b "c">]><a>&b;</a>', "has an XML declaration"),
        ('<!DOCTYPE a [<!ENTITY b "c">]><a>&b;</a>'.encode("utf-16"), "has an XML declaration"),
    ],
)
def test_an_invalid_junit_file_is_an_error_and_other_files_are_reported(
    content: bytes, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "1.xml").write_bytes(content)
    good = junit(tmp_path / "2.xml", case("tp=2", "fail"))

    with pytest.raises(SettingError, match=words):
        read_junit(tmp_path / "1.xml", tmp_path)
    assert main([str(tmp_path / "1.xml"), str(good)]) == 2
    shown = capsys.readouterr()
    assert words in shown.err
    assert "::error " in shown.out


def test_a_missing_file_and_a_folder_are_errors(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "missing.xml"):
        with pytest.raises(SettingError, match="cannot be read"):
            read_junit(path, tmp_path)
