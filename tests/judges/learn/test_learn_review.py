"""A pack begins with what a person should read, in words, with an example and a usual cause."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from pytest_trainsafe.judges.learn.events.slips import SLIPS
from pytest_trainsafe.judges.learn.inference.learn import learn
from pytest_trainsafe.judges.learn.packs.pack import Pack, pack_of, pack_text
from pytest_trainsafe.judges.learn.packs.parts import LISTED, parts_of
from pytest_trainsafe.judges.learn.packs.read import parse_pack
from pytest_trainsafe.judges.learn.packs.update import update
from pytest_trainsafe.judges.learn.run import ObservedRun
from pytest_trainsafe.judges.learn.use.from_tests import with_examples
from pytest_trainsafe.judges.learn.wording import in_words
from tests.support.learn.observed_programs import RULES, Net, data, loop, observed, partial


def train(seed: int) -> None:
    """A small training."""
    torch.manual_seed(seed)
    model = Net()
    loop(model, torch.optim.AdamW(model.parameters()))
    model.eval()
    with torch.no_grad():
        model(data())


@pytest.fixture(scope="module")
def runs() -> list[ObservedRun]:
    """Two programs, each with two seeds."""
    return [
        observed(partial(train, seed=seed), program, f"seed {seed}")
        for program in ("one", "two")
        for seed in (0, 1)
    ]


@pytest.fixture(scope="module")
def pack(runs: list[ObservedRun]) -> Pack:
    """A pack of two programs, with examples."""
    return with_examples(pack_of("ours", learn(runs)), runs, RULES)


def test_each_rule_to_read_has_an_example_and_a_usual_cause(pack: Pack) -> None:
    text = pack_text(pack, RULES)
    blocks = [each for each in re.split(r"\n\n+(?=\[)", text)[1:] if "\nsays" in each]
    read = [part for part in parts_of(pack.invariants, RULES) if not part.folded]
    assert len(blocks) == sum(len(part.invariants) for part in read) <= LISTED
    assert all("\n# usual cause if it breaks: " in each for each in blocks)
    # That something changes in every step is shown by no single record.
    assert all("\nexample = " in each for each in blocks if not each.startswith("[periodic"))


def test_no_sentence_names_the_place_of_a_value(pack: Pack) -> None:
    lines = pack_text(pack, RULES).splitlines()
    said = [line for line in lines if line.startswith(("says = ", "when = "))]
    folded = [line for line in lines if line.startswith("[") and line.endswith("}")]
    said += [line.partition('"claim": ')[0] for line in folded]
    assert len(said) == 2 * len(pack.invariants) - len(folded)
    assert [line for line in said if re.search(r"\b(arg|result)\.|\bself\.|shape\[", line)] == []


def test_a_pack_with_examples_and_headings_is_read_back(pack: Pack) -> None:
    again = parse_pack(pack_text(pack, RULES), "ours.pack", RULES)
    assert {each.claim: replace(each, example="") for each in again.invariants} == {
        each.claim: replace(each, example="") for each in pack.invariants
    }
    assert pack_text(again, RULES) == pack_text(pack, RULES)


def test_a_reviewer_reads_few_rules_first_and_habits_last(pack: Pack) -> None:
    parts = list(parts_of(pack.invariants, RULES))
    headings = [re.split("[:,]", part.heading[0])[0] for part in parts]
    assert headings[:2] == ["Who trains what", "What would be noticed if it broke"]
    assert headings[-1] == "Habits"
    assert sum(len(part.invariants) for part in parts[:2]) <= LISTED
    assert [part.folded for part in parts] == [False, False] + [True] * (len(parts) - 2)
    # Ten lines for each rule to read, one for each of the others, and the headings.
    lines = pack_text(pack, RULES).count("\n")
    assert lines < 11 * LISTED + len(pack.invariants)
    assert sum(len(part.invariants) for part in parts) == len(pack.invariants)
    assert f"{len(parts[-1].invariants)} rules" in parts[-1].heading[0]


def test_an_example_stays_while_its_program_does_not_run_again(
    pack: Pack, runs: list[ObservedRun]
) -> None:
    fresh = pack_of("ours", learn(runs[:2]))
    merged = update(pack, fresh).pack
    assert all(each.example for each in merged.invariants if each.claim.relation != "periodic")


@pytest.mark.parametrize(
    ("sentence", "words"),
    [
        ("arg.lr of f is 0.1", "the argument lr of f is 0.1"),
        ("result.1 of f is empty", "the second part of the result of f is empty"),
        ("arg.args.0.dtype is 'float32'", "the dtype of the first argument is 'float32'"),
        ("self.training is True", "training of the object is True"),
        (
            "the shape[0] of result of f is arg.n",
            "the first size of the result of f is the argument n",
        ),
        ("each optimizer steps", "each optimizer steps"),
    ],
)
def test_places_of_values_in_words(sentence: str, words: str) -> None:
    assert in_words(sentence) == words


def test_the_page_lists_every_slip_as_it_is_said() -> None:
    page = (Path(__file__).parents[3] / "docs/learn.md").read_text(encoding="utf-8")
    rows = [f"| `{name}` | {known.rule} | {known.causes} |" for name, known in SLIPS.items()]
    assert "\n".join(rows) in page
