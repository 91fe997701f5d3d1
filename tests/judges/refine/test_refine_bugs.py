"""GraphGuard's six bugs are refuted where its paper says, and their correct twins are proved."""

from fractions import Fraction

import pytest

from pytest_trainsafe.judges.refine.certificate.checker import check
from pytest_trainsafe.judges.refine.certificate.write import certificate_of
from pytest_trainsafe.judges.refine.prove import Proof, Refutation, prove
from tests.support.refine.bugs import BUGS, problem


def refuted(name):
    found = prove(problem(name, planted=True))
    assert isinstance(found, Refutation)
    assert found.operator.short == BUGS[name].operator
    return found


@pytest.mark.parametrize("name", BUGS)
def test_the_correct_twin_is_proved_and_its_certificate_holds(name):
    given = problem(name, planted=False)
    proof = prove(given)
    assert isinstance(proof, Proof)
    certificate = certificate_of(proof, given, 0)
    assert check(certificate, given.sequential, given.ranks, seed=3) >= len(proof.outputs)


def test_a_rotary_offset_that_the_backward_forgets_is_refuted_at_the_rotary_operator():
    found = refuted("rope offset")
    assert found.wrong == ("gradient",)
    # The gradient that it turns is right, and the table is the whole one, as before it is cut.
    assert {str(each) for each in found.inputs.values()} >= {"replica of cos"}


def test_an_auxiliary_loss_that_is_not_scaled_is_refuted_at_the_product_behind_it():
    found = refuted("auxiliary loss")
    assert found.wrong == ("first_gradient",)
    assert found.nearest is not None
    assert found.nearest.factor == Fraction(1, 2)


def test_a_padding_that_the_slice_does_not_match_is_refuted_at_the_scores():
    found = refuted("padding")
    assert found.wrong == ("attention",)


def test_expert_weights_that_are_cut_under_sequence_parallelism_are_refuted_at_the_first_product():
    found = refuted("experts")
    assert {key: str(each) for key, each in found.inputs.items()} == {
        "x": "concat 0 over tp of x",
        "up": "concat 1 over tp of up",
    }


def test_a_layer_norm_without_its_reduction_has_a_relation_that_is_not_the_expected_one():
    found = refuted("layer norm")
    assert found.wrong == ("norm_gradient",)
    assert found.relation is not None
    assert found.relation.summed
    assert str(found.relation).startswith("sum over tp")


def test_accumulated_losses_that_are_not_scaled_are_refuted_with_the_factor():
    found = refuted("accumulation")
    assert set(found.wrong) == {"loss", "weight_gradient"}
    assert found.nearest is not None
    assert found.nearest.factor == Fraction(1, 2)
