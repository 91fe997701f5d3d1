"""The checks of semantics are checked: each altered entry must fail."""

import random
from dataclasses import replace

import pytest
import torch

from pytest_trainsafe.arithmetic import Draw, call, check_semantics, table
from pytest_trainsafe.arithmetic.checks.alteration import altered

SEED = 20261128


def chosen(count):
    """Entries and seeds for alterations; memory that nobody wrote has no values to alter."""
    names = [
        name
        for name, each in sorted(table().items())
        if not each.random and list(each.examples(Draw()))
    ]
    chance = random.Random(SEED)
    return [(chance.choice(names), chance.randrange(10**6)) for _ in range(count)]


@pytest.mark.parametrize(("name", "seed"), chosen(50))
def test_an_altered_entry_fails_its_check(name, seed):
    entries = table()
    kind, entries[name] = altered(entries[name], random.Random(seed))
    assert check_semantics(name, entries), f"{name}: {kind}"


def test_a_clamp_by_the_order_of_residues_fails_its_check():
    def by_bits(n, x, min=None, max=None):
        bits = [n.lift(each) for each in (x, -(10**9) if min is None else min)]
        lower = torch.maximum(*bits)
        return lower if max is None else torch.minimum(lower, n.lift(max))

    entries = table()
    entries["aten.clamp"] = replace(entries["aten.clamp"], rule=by_bits)
    found = check_semantics("aten.clamp", entries)
    assert (found and "residues" in found[0]) or "depend" in found[0]


def test_semantics_that_lose_an_argument_where_values_cannot_show_it_fail():
    """With uninterpreted results, only dependence shows a lost argument."""

    def deaf(n, x, exponent):
        return n.function("pow", lambda a, b: torch.pow(a, b), n.lift(x), exponent)

    def lost(n, x, exponent):
        real = deaf(n, x, exponent)
        return real if type(n).__name__ == "Doubles" else n.function("pow", torch.pow, x, 1)

    entries = table()
    powers = [call(torch.tensor([2.0, 3.0]).double(), torch.tensor([0.3, 0.7]).double())]
    entries["aten.pow"] = replace(entries["aten.pow"], rule=deaf, examples=lambda draw: powers)
    assert check_semantics("aten.pow", entries) == []
    entries["aten.pow"] = replace(entries["aten.pow"], rule=lost, examples=lambda draw: powers)
    assert any("does not depend" in each for each in check_semantics("aten.pow", entries))


@pytest.mark.parametrize("name", ["aten.mul", "aten.native_layer_norm", "aten.cat"])
def test_a_removed_entry_is_named(name):
    entries = table()
    del entries[name]
    assert check_semantics(name, entries) == [f"{name} has no semantics"]
