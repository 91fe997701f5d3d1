"""Misspelt words: what is most similar, and what is as similar."""

from __future__ import annotations

import pytest

from pytest_trainsafe.core.usage import close_to, either, nearest


@pytest.mark.parametrize(
    ("word", "known", "close"),
    [
        ("tpp", ["dp", "tp", "pp", "tp"], ["pp", "tp"]),
        ("pt", ["tp", "seed"], ["tp"]),
        ("fcl", ["fc1", "norm"], ["fc1"]),
        ("fcl", ["fc1", "fc2", "norm"], ["fc1", "fc2"]),
        ("head", ["norm", "fc1"], []),
        ("x" * 101, ["x" * 100], []),
        ("tp", [], []),
    ],
)
def test_all_words_that_are_the_most_similar_are_found(
    word: str, known: list[str], close: list[str]
) -> None:
    assert close_to(word, known) == close


def test_a_suggestion_names_all_that_are_equally_near() -> None:
    assert nearest("tpp", ["tp", "pp", "seed"]) == "; did you mean 'pp' or 'tp'?"
    assert nearest("sed", ["tp", "seed"]) == "; did you mean 'seed'?"
    assert nearest("head", ["tp"]) == ""
    assert either(["a", "b", "c", "d", "e"]) == "'a', 'b', 'c' (or 2 more)"
