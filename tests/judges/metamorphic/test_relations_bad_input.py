"""Relations refuse invalid arguments and Points, and say what to give instead."""

from __future__ import annotations

import pytest

from pytest_trainsafe import Point, relations
from pytest_trainsafe.errors import ArgumentError, ArgumentTypeError, RelationError
from pytest_trainsafe.judges.metamorphic.relations import Setting


def setting(*, dp: int = 1, microbatches: int = 4, **arguments: object) -> Setting:
    given = {"batch_size": 3, "microbatches": microbatches, **arguments}
    return Setting("gpt.train", Point.of(dp=dp), given, microbatches)


@pytest.mark.parametrize(
    ("order", "words"),
    [
        ([0, 1, 2], r"Order\(\[0, 1, 2\]\) is not a permutation of the 4 micro-batches"),
        ([0, 1, 2, 2], "give each number from 0 to 3 once"),
        ([1, 2, 3, 4], "is not a permutation"),
        ([0, 1, 2, 3], "leaves the 4 micro-batches of a step in their order"),
    ],
)
def test_an_order_that_is_no_permutation_or_the_identity_is_refused(order, words):
    with pytest.raises(ArgumentError, match=words):
        relations.Order(order).change(setting())


@pytest.mark.parametrize("order", ["reversed", 3, [0, "1"], [True, False]])
def test_an_order_that_is_no_list_of_numbers_is_refused(order):
    with pytest.raises(ArgumentTypeError, match=r"such as Order\(\[2, 0, 1\]\)"):
        relations.Order(order)


def test_an_order_of_a_single_micro_batch_is_refused():
    with pytest.raises(RelationError, match="a step has 1 micro-batch; give each step two or more"):
        relations.Order().change(setting(microbatches=1))


def test_the_default_order_moves_micro_batches_across_ranks_and_the_first_to_the_end():
    for total in (2, 3, 4, 6, 8):
        order = relations.Order().change(setting(microbatches=total)).order
        assert sorted(order) == list(range(total))
        assert order[-1] == 0
        half = total // 2
        if total % 2 == 0 and total > 2:
            assert set(order[:half]) != set(range(half))


@pytest.mark.parametrize(
    ("into", "words"),
    [
        (5, r"12 samples \(microbatches=4, batch_size=3\) cannot be divided into 5 equal"),
        (6, "into=6 is neither a multiple nor a divisor of microbatches=4; give one of these"),
    ],
)
def test_a_split_into_unequal_micro_batches_is_refused(into, words):
    with pytest.raises(ArgumentError, match=words):
        relations.Split(into=into).change(setting())


@pytest.mark.parametrize(
    ("into", "dp", "words"),
    [
        (4, 1, "a step already has microbatches=4 with batch_size=3"),
        (1, 2, "1 micro-batches cannot be divided among dp=2 ranks"),
    ],
)
def test_a_split_that_does_not_apply_at_the_point_is_refused(into, dp, words):
    with pytest.raises(RelationError, match=words):
        relations.Split(into=into).change(setting(dp=dp))


def test_a_split_has_as_few_micro_batches_as_the_ranks_need_or_single_samples():
    assert relations.Split().change(setting()).values == {"microbatches": 1, "batch_size": 12}
    assert relations.Split().change(setting(dp=2)).values == {"microbatches": 2, "batch_size": 6}
    few = setting(dp=4)
    assert relations.Split().change(few).values == {"microbatches": 12, "batch_size": 1}


@pytest.mark.parametrize("into", [0, -2, 1.5, True, "4"])
def test_the_number_of_micro_batches_of_a_split_must_be_a_positive_integer(into):
    with pytest.raises(ArgumentError, match="an integer of at least 1"):
        relations.Split(into=into)


def test_an_unknown_loss_reduction_of_a_split_is_refused():
    with pytest.raises(ArgumentError, match="loss='median'; loss must be one of mean, sum, none"):
        relations.Split(loss="median")  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [0, "many", True, 2.0])
def test_a_split_requires_a_batch_size_that_is_a_positive_integer(value):
    with pytest.raises(
        RelationError, match=r"batch_size=.*, but the relation needs batch_size to be"
    ):
        relations.Split().change(setting(batch_size=value))


@pytest.mark.parametrize("factor", [0, -1.0, 1, "2", True, float("nan"), float("inf")])
def test_a_loss_scale_factor_must_be_a_positive_number_other_than_1(factor):
    with pytest.raises(ArgumentError, match="factor must be a positive number other than 1"):
        relations.LossScale(factor=factor)


@pytest.mark.parametrize("scale", [0, "dynamic", False])
def test_a_loss_scale_argument_that_is_no_positive_number_is_refused(scale):
    with pytest.raises(RelationError, match="is not a positive number"):
        relations.LossScale().change(setting(loss_scale=scale))


@pytest.mark.parametrize(
    "make",
    [
        lambda: relations.Padding(entries=0),
        lambda: relations.Vocabulary(ids=-1),
        lambda: relations.Repeat(times=1),
    ],
)
def test_padding_vocabulary_and_repeat_refuse_counts_that_change_nothing(make):
    with pytest.raises(ArgumentError, match="must be an integer of at least"):
        make()


def test_a_padding_argument_that_is_no_number_is_refused():
    with pytest.raises(
        RelationError, match=r"padding='left', but the relation needs padding to be"
    ):
        relations.Padding().change(setting(padding="left"))


def test_patterns_to_ignore_must_be_a_tuple():
    with pytest.raises(ArgumentError, match=r"ignore; ignore must be a tuple of patterns"):
        relations.Order(ignore="*.router")  # type: ignore[arg-type]


def test_a_program_must_declare_at_least_one_relation_and_distinct_names():
    with pytest.raises(ArgumentTypeError, match=r"hold takes relations, such as"):
        relations.hold("order")  # type: ignore[arg-type]
    with pytest.raises(ArgumentTypeError, match="not nothing"):
        relations.hold()
    with pytest.raises(ArgumentError, match="two relations with the name 'order'"):
        relations.hold(relations.Order(), relations.Order([1, 0]))


def test_a_relation_without_a_name_is_refused():
    class Nameless(relations.Relation):
        what = "nothing"
        suspects = "nothing"

        def change(self, setting):
            return relations.Change()

    with pytest.raises(ArgumentTypeError, match="Nameless has no `name`"):
        relations.hold(Nameless())


@pytest.mark.parametrize(
    ("relation", "words"),
    [
        (
            relations.Padding(),
            r"Padding\(length='seq_len'\) for train, which has no parameter 'seq",
        ),
        (relations.Padding(length="lenght"), "did you mean 'length'"),
        (relations.Vocabulary(), r"Vocabulary\(argument='unused_ids'\)"),
        (relations.Split(batch="samples"), r"Split\(batch='samples'\)"),
        (relations.LossScale(), r"LossScale\(argument='loss_scale'\)"),
        (relations.Repeat(), r"Repeat\(argument='repeats'\)"),
    ],
)
def test_a_relation_that_acts_through_a_missing_argument_is_refused_where_it_is_declared(
    relation, words
):
    with pytest.raises(ArgumentError, match=words):

        @relations.hold(relation)
        def train(ctx, batch_size=2, length=6, padding=0): ...


def test_relations_that_act_through_axes_and_existing_arguments_are_accepted():
    @relations.hold(relations.Split(), relations.Padding(length="length"), relations.Order())
    def train(ctx, batch_size=2, length=6, padding=0): ...

    @relations.hold(relations.Vocabulary())
    def open_ended(ctx, **arguments): ...
