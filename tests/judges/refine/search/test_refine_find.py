"""Every kind of relation is found, confirmed by combining, and preferred in the stated order."""

import pytest
import torch

from pytest_trainsafe.arithmetic import Residues
from pytest_trainsafe.judges.refine.mesh import RankMesh
from pytest_trainsafe.judges.refine.prove import holds
from pytest_trainsafe.judges.refine.relations.cut import cut
from pytest_trainsafe.judges.refine.relations.parse import parse_relation
from pytest_trainsafe.judges.refine.search.find import Finder
from pytest_trainsafe.judges.refine.search.index import Index
from pytest_trainsafe.judges.refine.search.nearest import nearest

NUMBERS = Residues(5)


def entered(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return NUMBERS.enter(torch.randn(shape, dtype=torch.float64, generator=generator))


def draw(name, shape):
    return entered(*shape, seed=len(name) + 7)


RELATIONS = [
    ({"tp": 2}, "replica of w"),
    ({"tp": 2}, "concat 0 over tp of w"),
    ({"tp": 4}, "concat 1 over tp of w"),
    ({"tp": 2}, "concat 1 over tp by 2 of w"),
    ({"tp": 4}, "concat 0 over tp order 2 0 1 3 of w"),
    ({"cp": 2}, "concat 0 over cp zigzag of w"),
    ({"cp": 3}, "concat 1 over cp zigzag of w"),
    ({"cp": 2, "tp": 2}, "concat 1 over tp, concat 0 over cp zigzag of w"),
    ({"tp": 2}, "sum over tp of w"),
    ({"dp": 2, "tp": 2}, "concat 0 over tp of w"),
    ({"dp": 2, "tp": 2}, "sum over dp, concat 1 over tp of w"),
    ({"dp": 2, "tp": 2}, "concat 1 over tp, sum over dp of w"),
    ({"dp": 2, "tp": 2}, "concat 0 over dp, concat 1 over tp of w"),
    ({"dp": 2, "tp": 2}, "sum over dp, sum over tp of w"),
    ({"pp": 2, "tp": 2}, "concat 0 over tp, at pp=1 of w"),
    ({"pp": 3}, "at pp=1 of w"),
    ({"tp": 2}, "concat 0 of w, w_1"),
    ({"dp": 2}, "concat 0 over dp, concat 0 of w, w_1"),
    ({"dp": 2}, "concat 0, concat 0 over dp of w, w_1"),
    ({"tp": 2}, "permute 1 0 of w"),
    ({"tp": 2}, "concat 1 over tp, permute 1 0 of w"),
]


@pytest.mark.parametrize(("axes", "text"), RELATIONS)
def test_a_relation_is_found_from_the_values_that_it_gives(axes, text):
    mesh = RankMesh(axes)
    relation = parse_relation(text, "w", axes)
    x = entered(8, 12)
    ranks = cut("x", x, relation, mesh, NUMBERS, draw)
    assert holds(relation, x, ranks, mesh, NUMBERS)
    candidates = Finder(Index(ranks, mesh, NUMBERS)).relations("x", x)
    found = [each for each in candidates if holds(each, x, ranks, mesh, NUMBERS)]
    assert found
    same_kinds = [{step.kind for step in each.steps} for each in found]
    assert {step.kind for step in relation.steps} in same_kinds
    assert parse_relation(str(found[0]), "w", axes) == found[0]


def test_parts_of_fused_weights_with_copies_are_found():
    axes = {"tp": 4}
    mesh = RankMesh(axes)
    relation = parse_relation("concat 0 over tp parts 3+1x2+1x2", "qkv", axes)
    x = entered(16, 2)
    ranks = cut("x", x, relation, mesh, NUMBERS, draw)
    assert ranks[0]["qkv"].shape == (5, 2)
    assert ranks[0]["qkv"][3:].equal(ranks[1]["qkv"][3:])
    (found, *_) = Finder(Index(ranks, mesh, NUMBERS), [relation.steps[0].parts]).relations("x", x)
    assert found == relation


def test_a_changed_value_on_one_rank_has_no_relation():
    mesh = RankMesh({"tp": 2})
    for text in ("replica", "concat 0", "sum"):
        relation = parse_relation(text, "w", mesh.axes)
        x = entered(4, 4)
        ranks = cut("x", x, relation, mesh, NUMBERS, draw)
        changed = ranks[1]["w"].clone()
        changed[0, 0] = NUMBERS.add(changed[0, 0], 1)
        wrong = [ranks[0], {"w": changed}]
        assert not holds(relation, x, wrong, mesh, NUMBERS)
        found = Finder(Index(wrong, mesh, NUMBERS)).relations("x", x)
        assert [str(each) for each in found] in ([], ["at tp=0 of w"])


def test_a_loss_is_the_sum_of_terms_that_have_another_name():
    mesh = RankMesh({"dp": 2})
    terms = [{"mean": entered(seed=number)} for number in range(2)]
    loss = NUMBERS.add(terms[0]["mean"], terms[1]["mean"])
    found = Finder(Index(terms, mesh, NUMBERS)).relations("loss", loss)
    assert [str(each) for each in found] == ["sum over dp of mean"]


def test_whole_tensors_are_preferred_to_sums_and_parts():
    mesh = RankMesh({"tp": 2})
    x = entered(4, 4)
    half = NUMBERS.divide(x, 2)
    term = entered(4, 4, seed=3)
    ranks = [
        {"x": x, "other": x, "half": half, "part": part, "term": each}
        for part, each in zip(x.chunk(2), (term, NUMBERS.subtract(x, term)), strict=True)
    ]
    found = Finder(Index(ranks, mesh, NUMBERS)).relations("x", x)
    assert [str(each) for each in found] == [
        "replica of x",
        "replica of other",
        "concat 0 over tp of part",
        "sum over tp of term",
    ], "a sum of equal halves would be twice a half, which is a scale"


def test_a_multiple_is_no_relation_and_its_factor_is_said():
    mesh = RankMesh({"tp": 2})
    x = entered(4, 4)
    for factor, ranks, said in (
        (2, [{"w": NUMBERS.divide(x, 2)}] * 2, "2 times w"),
        (3, [{"w": NUMBERS.divide(each, 3)} for each in x.chunk(2)], "3 times the concat 0"),
    ):
        index = Index(ranks, mesh, NUMBERS)
        assert Finder(index).relations("x", x) == [] or factor == 2
        (found, *_) = nearest(x, index, NUMBERS)
        assert said in str(found)
        assert found.factor == factor


def test_a_mask_is_what_the_masks_of_all_ranks_hold():
    """A word is outside of the vocabulary if it is outside of the part of every rank."""
    mesh = RankMesh({"tp": 2})
    ranks = [{"outside": torch.tensor(bits)} for bits in ([True, False, True], [True, True, False])]
    x = torch.tensor([True, False, False])
    found = Finder(Index(ranks, mesh, NUMBERS)).relations("outside", x)
    relation = parse_relation("all over tp", "outside", {"tp": 2})
    assert relation in found
    assert relation.partial
    assert not relation.summed
    assert holds(relation, x, ranks, mesh, NUMBERS)
    assert not holds(relation, ~x, ranks, mesh, NUMBERS)
