"""The values that axes take, as words and from a marker."""

import pytest

from pytest_trainsafe.core.axes import AXES, Axis, check_values
from pytest_trainsafe.errors import SweepError


@pytest.mark.parametrize(
    ("name", "word", "value"),
    [
        ("tp", "4", 4),
        ("zero", "0", 0),
        ("sp", "true", True),
        ("sp", "0", False),
        ("recompute", "False", False),
        ("recompute", "selective", "selective"),
        ("dtype", "bfloat16", "bfloat16"),
    ],
)
def test_a_word_becomes_a_value_of_the_axis_type(name, word, value):
    parsed = AXES[name].parse(word)

    assert (type(parsed), parsed) == (type(value), value)


@pytest.mark.parametrize(
    ("name", "word", "message"),
    [
        ("tp", "two", "axis 'tp' takes an integer >= 1, not 'two'"),
        ("tp", "0", "axis 'tp' takes an integer >= 1, not 0"),
        ("tp", "1.5", "axis 'tp' takes an integer >= 1, not '1.5'"),
        ("zero", "4", "axis 'zero' takes one of 0, 1, 2, 3, not 4"),
        ("sp", "maybe", "axis 'sp' takes true or false, not 'maybe'"),
        ("dtype", "fp32", "axis 'dtype' takes one of float64, float32, bfloat16, float16"),
    ],
)
def test_an_invalid_word_is_refused_with_the_values_that_the_axis_takes(name, word, message):
    with pytest.raises(SweepError, match=message):
        AXES[name].parse(word)


def test_an_integer_axis_refuses_true():
    with pytest.raises(SweepError, match="axis 'tp' takes an integer >= 1, not True"):
        AXES["tp"].check(True)


def test_an_axis_must_have_one_or_more_distinct_values():
    with pytest.raises(SweepError, match="axis 'tp' has no values; give an integer >= 1"):
        check_values(AXES["tp"], [])
    with pytest.raises(SweepError, match="axis 'tp' has duplicate values: 1, 2, 1"):
        check_values(AXES["tp"], [1, 2, 1])


@pytest.mark.parametrize(
    ("text", "value"), [("1e-3", 1e-3), ("3", 3.0), (".5", 0.5), ("-2.5E+2", -250.0)]
)
def test_an_axis_of_numbers_parses_them(text: str, value: float) -> None:
    found = Axis("lr", (float,)).parse(text)

    assert (type(found), found) == (float, value)


@pytest.mark.parametrize("text", ["", "x", "nan", "inf", "1e", "1_0", "1e999", "0x1"])
def test_an_axis_of_numbers_refuses_what_is_no_finite_number(text: str) -> None:
    with pytest.raises(SweepError, match="axis 'lr' takes a number, not"):
        Axis("lr", (float,)).parse(text)


def test_an_axis_of_numbers_turns_integers_into_numbers() -> None:
    assert type(Axis("lr", (float,)).check(2)) is float
    with pytest.raises(SweepError, match="takes a number"):
        Axis("lr", (float,)).check(10**400)
