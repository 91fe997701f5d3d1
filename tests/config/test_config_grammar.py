"""The grammar of --trainsafe-sweep, without pytest."""

import pytest

from pytest_trainsafe.config.grammar import gather, parse_words, split_quoted
from pytest_trainsafe.errors import SweepError


@pytest.mark.parametrize(
    ("line", "rewritten", "taken"),
    [
        ("--trainsafe-sweep tp=1", "--trainsafe-sweep=tp=1", ""),
        (
            "a.py --trainsafe-sweep tp=1 cp=2 -x",
            "a.py --trainsafe-sweep=tp=1 --trainsafe-sweep=cp=2 -x",
            "cp=2",
        ),
        (
            "--trainsafe-sweep tp=1 a.py cp=2",
            "--trainsafe-sweep=tp=1 a.py --trainsafe-sweep=cp=2",
            "cp=2",
        ),
        (
            "--trainsafe-sweep=tp=1 cp=2",
            "--trainsafe-sweep=tp=1 --trainsafe-sweep=cp=2",
            "cp=2",
        ),
        (
            "--trainsafe-sweep tp=1 -k b=1 cp=2",
            "--trainsafe-sweep=tp=1 -k b=1 cp=2",
            "",
        ),
        ("--trainsafe-sweep tp=1 -- cp=2", "--trainsafe-sweep=tp=1 -- cp=2", ""),
        ("--trainsafe-sweep tp=1 here=1", "--trainsafe-sweep=tp=1 here=1", ""),
        ("--trainsafe-sweep a.py", "--trainsafe-sweep=a.py", ""),
        ("a.py --trainsafe-sweep", "a.py --trainsafe-sweep", ""),
        ("a.py cp=2", "a.py cp=2", ""),
    ],
)
def test_each_sweep_word_becomes_an_option_and_other_arguments_are_unchanged(
    line, rewritten, taken
):
    arguments = line.split()

    words = gather(arguments, lambda word: word == "here=1")

    assert (" ".join(arguments), words) == (rewritten, taken.split())


@pytest.mark.parametrize(
    ("words", "divided"),
    [
        (["tp=1  cp=2", "dp=1"], ["tp=1", "cp=2", "dp=1"]),
        (["mode=two words"], ["mode=two words"]),
        (["tp=1 tests/"], ["tp=1 tests/"]),
        ([""], [""]),
    ],
)
def test_axis_words_in_one_quoted_word_are_divided_and_a_value_with_a_space_is_not(words, divided):
    assert split_quoted(words) == divided


def test_sweep_words_are_parsed_in_their_order():
    assert parse_words(["cp=2,1", "layers=8"]) == (("cp", ("2", "1")), ("layers", ("8",)))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["tests/"], "--trainsafe-sweep takes words such as tp=1,2 or .*, not 'tests/'"),
        (["tp=1", "tp=2"], r"names axis 'tp' twice \(tp=1 and tp=2\)"),
        (["tp="], "'tp=' has an empty value; write tp=VALUE"),
        (["tp=1,,2"], "'tp=1,,2' has an empty value"),
        (["tp=x"], "--trainsafe-sweep tp=x: axis 'tp' takes an integer >= 1, not 'x'"),
        (["tp=1,1"], "axis 'tp' has duplicate values: 1, 1"),
    ],
)
def test_an_invalid_sweep_word_is_named_in_the_error(words, message):
    with pytest.raises(SweepError, match=message):
        parse_words(words)
