"""Tables by value keep what was noted first, in any order and number of notes."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from pytest_trainsafe.arithmetic.images import Images

NOTES = st.lists(
    st.lists(st.tuples(st.integers(0, 20), st.integers(1, 99)), max_size=6), max_size=8
)


def numbers(values):
    return torch.tensor(list(values), dtype=torch.int64).view(torch.float64)


@given(NOTES)
def test_a_table_is_a_dictionary_that_keeps_first_entries_and_no_zero(notes):
    images = Images()
    right: dict[int, int] = {}
    for note in notes:
        images.note(numbers(key for key, _ in note), numbers(value for _, value in note))
        for key, value in note:
            right.setdefault(key, value)
    right.pop(0, None)
    assert bool(images) == bool(right)
    found = images.find(numbers(range(25)))
    if found is None:
        assert not right
    else:
        values = found[1].view(torch.int64).tolist()
        assert {key: values[key] for key in range(25) if found[0][key]} == right
