"""A certificate holds when its Runs are made again, and one that says anything else is refused."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pytest_trainsafe.config.settings import Settings
from pytest_trainsafe.errors import TraceError
from pytest_trainsafe.judges.exact.certificate import (
    Certificate,
    EditedError,
    Side,
    differences,
    read,
    sealed,
    write,
)
from pytest_trainsafe.judges.exact.command import HOLDS, REFUSED, UNKNOWN, main
from pytest_trainsafe.judges.exact.rerun import RefusedError, case_of
from pytest_trainsafe.trace.run_spec import RunSpec
from tests.support.exact.certify import Certify
from tests.support.exact.proved_program import PROGRAM

TEST = """
import pytest
from program import train
from pytest_trainsafe import assert_proved_equivalent


@pytest.mark.trainsafe(train, tp=2)
def test_clean(candidate_trace, reference_trace):
    assert_proved_equivalent(candidate_trace, reference_trace)
"""

SIDES = ("candidate", "reference")
GPT = "pytest_trainsafe.reference_models.gpt:train"


def made(axes: tuple[tuple[str, Any], ...] = (("tp", 2),), **fields: Any) -> Certificate:
    """A certificate of Runs that nobody made."""
    side = Side(
        spec=RunSpec(program=GPT, dtype="exact", axes=axes), decisions=(1, 1),
        decided=("a", "b"), integers=("c", "d"), operators={"aten.mm": 3},
    )  # fmt: skip
    given: dict[str, Any] = {
        "candidate": side, "reference": side, "sources": {"a.py": "1"}, "seeds": (0, 1),
        "hashed": 5, "multiplications": 7, "error": 1e-12, "accept": (),
        "tensors": {"0/loss": "scalar ab"}, "layouts": {"0/loss": "replicated"},
        "semantics": {"aten.mm": "m"},
        "own_sizes": {"rows": 48}, "assumes": (), "not_covered": ("x",), "versions": {},
    }  # fmt: skip
    return Certificate(**(given | fields))


def test_a_certificate_holds_until_it_or_its_program_is_changed(
    pytester: pytest.Pytester, without_hypothesis: None, shared_fork_server: None, certify: Certify
) -> None:
    pytester.makepyfile(program=PROGRAM, test_it=TEST)
    pytester.runpytest_inprocess("--basetemp=base").assert_outcomes(passed=1)
    [path] = Path(pytester.path).glob("**/*test_clean*.certificate.json")
    certificate = read(path)
    assert set(certificate.sources) == {"program.py"}
    assert certificate.candidate.spec.axes == (("tp", 2),)
    assert len(set(certificate.candidate.integers)) == 1  # both ranks got the same data
    assert any("4x8" in text or "8x4" in text for text in certificate.tensors.values())
    assert any("cut over tp" in text for text in certificate.layouts.values())

    status, out, err = certify(path, "--types", "--seeds=2")
    assert status == HOLDS, err
    assert "\nparam up.weight: tp sharded (dimension 0)\n" in out
    assert re.search("holds: .* tensors of program:train are equal with 2 fresh seeds", out)

    name = next(iter(certificate.tensors))
    text = certificate.tensors[name]
    other = text[:-1] + ("0" if text[-1] != "0" else "1")
    edited = msgspec.structs.replace(certificate, tensors=certificate.tensors | {name: other})
    status, _, err = certify(write(edited, path.parent, "edited"))
    assert status == REFUSED
    assert f"tensors.{name}: the certificate has {other}" in err

    pytester.makepyfile(program=PROGRAM.replace("lr=0.01", "lr=0.025"))
    status, _, err = certify(path)
    assert status == REFUSED
    assert re.search(r"does not say what its Runs give.*sources\.program\.py", err, re.DOTALL)


@pytest.mark.parametrize("seed", range(40))
def test_any_edit_is_a_difference_even_with_a_new_hash(seed: int) -> None:
    chance = random.Random(20261128 + seed)
    plain = msgspec.to_builtins(made())
    top = chance.choice([each for each in plain if each not in ("format", "versions", "digest")])
    within, key = (plain[top], chance.choice(list(plain[top]))) if top in SIDES else (plain, top)
    within[key] = edited(within[key], chance)

    [found] = differences(sealed(msgspec.convert(plain, type=Certificate)), made())

    assert found.startswith(f"{top}.{key}" if top in SIDES else key)


def edited(value: Any, chance: random.Random) -> Any:
    """The value with one part of it changed, added or removed."""
    if isinstance(value, bool) or value is None:
        return not value
    if isinstance(value, int | float):
        return value + chance.choice((1, 7))
    if isinstance(value, str):
        return value + "!"
    if isinstance(value, list | tuple):
        kept = list(value)
        return kept[1:] if kept and chance.random() < 0.5 else [*kept, *(kept[:1] or ["new"])]
    key = chance.choice([key for key in value if key not in ("dtype", "program")] or ["new"])
    if key == "axes":
        return value | {"axes": [["tp", 4]]}
    return value | {key: edited(value[key], chance)}


def test_an_edit_without_a_new_hash_is_refused_when_it_is_read(tmp_path: Path) -> None:
    path = write(made(), tmp_path, "test_it.py::test_clean[tp2]")
    assert differences(read(path), made()) == []
    fields = json.loads(path.read_text())
    for name, value in {"not_covered": [], "error": 0.0, "seeds": [0], "tensors": {}}.items():
        path.write_text(json.dumps(fields | {name: value}))
        with pytest.raises(EditedError, match="was edited"):
            read(path)
        assert main([str(path)]) == REFUSED


@pytest.mark.parametrize(
    "content",
    ["", "{}", "[1]", '{"format": "other"}', "{" * 100_000, "[" * 100_000, '"' + "a" * 10**6 + '"',
     '{"format": "pytest-trainsafe certificate 4"}', "\x00", "null", "1" * 10_000],
)  # fmt: skip
def test_a_file_that_is_no_certificate_is_named(
    content: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "some.json"
    path.write_text(content)
    with pytest.raises(TraceError, match="certificate"):
        read(path)
    assert main([str(path)]) == UNKNOWN
    assert "some.json" in capsys.readouterr().err


def test_a_missing_file_and_a_folder_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for path in (tmp_path / "missing.json", tmp_path):
        assert main([str(path)]) == UNKNOWN
        assert f"{path} cannot be read" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("hashed", 2**60),
        ("hashed", -1),
        ("multiplications", -1),
        ("seeds", list(range(101))),
        ("seeds", [-1]),
        ("tensors", {"a": "x" * 10_001}),
        ("error", "small"),
        ("not_covered", "x"),
    ],
)
def test_hostile_sizes_are_refused_when_they_are_read(
    field: str, value: object, tmp_path: Path
) -> None:
    path = write(made(), tmp_path, "x")
    path.write_text(json.dumps(json.loads(path.read_text()) | {field: value}))
    with pytest.raises(TraceError, match="is not a certificate"):
        read(path)


@pytest.mark.parametrize(
    ("axes", "match"),
    [
        ((("tp", 10**9),), "world size 1000000000"),
        ((("tp", 0),), "size of tp is 0"),
        ((("tp", -2),), "size of tp is -2"),
        ((("tp", "two"),), "size of tp is 'two'"),
        ((("tp", 3),), "cannot be run"),
        ((("sp", True),), "sp needs tp > 1"),
        ((("tp", 2),), "would not make this Run"),
    ],
)
def test_runs_that_cannot_be_made_are_refused(axes: Any, match: str) -> None:
    with pytest.raises(RefusedError, match=match):
        case_of(made(axes), Settings())


@pytest.mark.parametrize(
    ("program", "match"),
    [
        ("no.such:train", "cannot be imported"),
        ("os:system", "cannot be made"),
        ("not a path", "not an import path"),
        ("os", "not an import path"),
    ],
)
def test_programs_that_cannot_be_run_are_refused(program: str, match: str) -> None:
    side = msgspec.structs.replace(
        made().candidate, spec=RunSpec(program=program, dtype="exact", arguments="{}")
    )
    with pytest.raises(RefusedError, match=match):
        case_of(made(candidate=side), Settings())


@pytest.mark.parametrize("arguments", ["", "[]", "{", '{"a": ' * 10_000, "1"])
def test_impossible_arguments_are_refused(arguments: str) -> None:
    spec = RunSpec(program=GPT, dtype="exact", axes=(("tp", 2),), arguments=arguments)
    side = msgspec.structs.replace(made().candidate, spec=spec)
    with pytest.raises(RefusedError):
        case_of(made(candidate=side, reference=side), Settings())
