"""Tables by value keep what was noted first, in any order and number of notes."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from pytest_trainsafe.arithmetic.images import Images, Noted
from pytest_trainsafe.arithmetic.packing import bits_of

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


def test_what_any_table_notes_may_be_there_and_most_other_numbers_are_not():
    noted = Noted()
    first, second = Images(noted), Images(noted)
    keys = torch.randint(1, 2**62, (3000,), generator=torch.Generator().manual_seed(0))
    for start in range(0, 3000, 100):
        table = first if start % 200 else second
        part = keys[start : start + 100].view(torch.float64)
        table.note(part, part)
        assert noted.may_have(bits_of(part))
    assert len(noted.places(bits_of(keys.view(torch.float64)))) == 3000
    others = torch.randint(1, 2**62, (3000,), generator=torch.Generator().manual_seed(1))
    # One in a few hundred would send nearly every sum of large tensors through all tables.
    assert len(noted.places(bits_of(others.view(torch.float64)))) < 3
    assert not Noted().may_have(bits_of(keys.view(torch.float64)))


def test_numbers_that_are_no_residues_are_not_noted_and_do_not_disturb():
    images = Images()
    images.note(numbers([3]), numbers([4]))
    infinite = torch.tensor([float("inf"), float("-inf"), float("nan")], dtype=torch.float64)
    found = images.find(torch.cat((infinite, numbers([3]))))
    assert found is not None
    assert found[0].tolist() == [False, False, False, True]
