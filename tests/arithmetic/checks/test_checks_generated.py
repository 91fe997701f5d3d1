"""A test for each entry of the table of semantics, which follows from the entry itself."""

import pytest

from pytest_trainsafe.arithmetic import Draw, check_semantics, table

#: What needs more than tensors; each has a test by hand.
BY_HAND = {"aten.lift_fresh", "aten._index_put_impl_"}


@pytest.mark.parametrize("name", sorted(table()))
def test_semantics_agree_with_the_operator_and_lose_no_argument(name):
    assert check_semantics(name) == []


def test_each_entry_has_examples_or_a_test_by_hand():
    without = {name for name, each in table().items() if not list(each.examples(Draw()))}
    assert {name for name in without if name.startswith("aten.")} == BY_HAND
