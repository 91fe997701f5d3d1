"""A certificate is complete text, holds for fresh values, and is refused after any edit."""

import json
import random
from pathlib import Path

import msgspec
import pytest

from pytest_trainsafe.judges.refine.certificate.checker import check
from pytest_trainsafe.judges.refine.certificate.content import (
    Certificate,
    parse_certificate,
    read_certificate,
)
from pytest_trainsafe.judges.refine.certificate.write import certificate_of
from pytest_trainsafe.judges.refine.errors import CertificateError
from pytest_trainsafe.judges.refine.graphs.fx_text import parse_fx
from pytest_trainsafe.judges.refine.prove import Proof, prove
from tests.support.refine.graphs import RANK, SEQUENTIAL, mlp

SEQUENTIAL_GRAPH = parse_fx(SEQUENTIAL, "sequential.txt")
RANKS = [parse_fx(RANK, f"rank{number}.txt") for number in (0, 1)]


@pytest.fixture(scope="module")
def certificate():
    problem = mlp()
    proof = prove(problem)
    assert isinstance(proof, Proof)
    return certificate_of(proof, problem, 0)


def test_a_certificate_holds_for_fresh_values(certificate, tmp_path):
    certificate.save(tmp_path / "mlp.json")
    read = read_certificate(tmp_path / "mlp.json")
    assert read == certificate
    count = sum(map(len, certificate.relations.values()))
    assert check(read, SEQUENTIAL_GRAPH, RANKS, seed=77) == count
    assert check(read, SEQUENTIAL_GRAPH, RANKS) == count
    assert certificate.operators["aten.gelu"].endswith("activations")
    assert certificate.integers["ids"].below == 24
    assert certificate.error < 1e-9


def test_a_certificate_that_another_machine_made_holds():
    kept = Path(__file__).with_name("kept") / "mlp.json"  # as `certificate_of` saved it once
    certificate = read_certificate(kept)
    count = sum(map(len, certificate.relations.values()))
    assert count > 0
    assert check(certificate, SEQUENTIAL_GRAPH, RANKS) == count


def edited(certificate: Certificate, chance: random.Random) -> tuple[str, Certificate]:
    """The certificate with one random edit of what it says, and the right digest for it."""
    plain = json.loads(certificate.text())
    kind = chance.choice(
        ["relation", "drop relation", "rename", "output", "drop output", "graph", "size", "input",
         "mesh", "error", "operator", "missing"]
    )  # fmt: skip
    name = chance.choice(sorted(plain["relations"]))
    if kind == "relation":
        texts = plain["relations"][name]
        place = chance.randrange(len(texts))
        others = [each for found in plain["relations"].values() for each in found]
        others += ["sum over tp of mm", "concat 0 over tp of mm_1", "concat 1 over tp of gelu"]
        right = set(texts)
        texts[place] = chance.choice([each for each in others if each not in right])
    elif kind == "drop relation":
        del plain["relations"][name]
    elif kind == "rename":
        plain["relations"][name + "_9"] = plain["relations"].pop(name)
    elif kind == "output":
        plain["outputs"]["index"] = chance.choice(["sum over tp of index", "replica of _softmax"])
    elif kind == "drop output":
        plain["outputs"] = {}
    elif kind == "graph":
        part = chance.choice([plain["sequential"], *plain["ranks"]])
        part["digest"] = part["digest"][::-1]
    elif kind == "size":
        own = {chance.choice(["x", "up"]): chance.choice([[4, 1], [4, 3], [4, 24], [4], [4, 6, 8]])}
        plain["sizes"] = [own, {}, {}]
    elif kind == "input":
        plain["inputs"][chance.choice(["up", "down"])] = "replica of up"
    elif kind == "mesh":
        plain["mesh"] = {"tp": chance.choice([1, 3]), "dp": 1}
    elif kind == "error":
        plain["error"] = chance.choice([1e-3, -1.0])
    elif kind == "operator":
        del plain["operators"][chance.choice(sorted(plain["operators"]))]
    else:
        plain["missing"] = [name]
    return kind, msgspec.convert(plain, Certificate).whole()


def refused(certificate: Certificate) -> bool:
    try:
        check(parse_certificate(certificate.text()), SEQUENTIAL_GRAPH, RANKS, seed=3)
    except CertificateError:
        return True
    return False


def test_a_hundred_random_edits_are_refused_though_the_digest_fits(certificate):
    chance = random.Random(20261128)
    for _ in range(100):
        kind, wrong = edited(certificate, chance)
        assert refused(wrong), f"{kind} was accepted"


def test_a_hundred_changed_characters_are_refused(certificate):
    chance = random.Random(5)
    text = certificate.text()
    letters = [place for place, letter in enumerate(text) if letter.isalnum()]
    for _ in range(100):
        place = chance.choice(letters)
        new = chance.choice([each for each in "abz019" if each != text[place]])
        with pytest.raises(CertificateError):
            parse_certificate(text[:place] + new + text[place + 1 :])


def test_other_graphs_than_those_that_were_proved_are_refused(certificate):
    renamed = parse_fx(RANK.replace("gelu", "relu"), "rank1.txt")
    with pytest.raises(CertificateError, match="is not the graph"):
        check(certificate, SEQUENTIAL_GRAPH, [RANKS[0], renamed])
    with pytest.raises(CertificateError, match="of 2 ranks"):
        check(certificate, SEQUENTIAL_GRAPH, RANKS[:1])


@pytest.mark.parametrize("text", ["", "{}", "[1]", "\x00", "[" * 100_000, '{"format": 2}'])
def test_what_is_no_certificate_is_refused(text):
    with pytest.raises(CertificateError, match="no certificate"):
        parse_certificate(text)
