"""Every relation that a correct program declares holds for it."""

from __future__ import annotations

import pytest

from pytest_trainsafe import assert_same_by, relations
from pytest_trainsafe.errors import RelationError
from pytest_trainsafe.reference_models import cnn, deepseek, gpt, llama, lstm, masked, moe
from tests.support.metamorphic.relation_runs import fixture_of

SMALL = {"hidden": 8, "vocabulary": 16, "steps": 1}
LANGUAGE = {**SMALL, "layers": 1, "heads": 2, "seq_len": 8}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The trace fixture of a correct program; all relations share its unchanged Run."""
    return fixture_of(masked.train, tmp_path_factory.mktemp("masked"), SMALL)


@pytest.mark.parametrize(
    "name", ["split", "order", "recompute", "padding", "vocabulary", "loss-scale", "repeat"]
)
def test_a_relation_holds_for_a_correct_program(trained, name):
    assert_same_by(name, trained)

    assert not trained.runs.notes  # every tensor has a counterpart


def test_split_into_micro_batches_of_one_sample_holds_with_summed_losses(trained):
    assert_same_by(relations.Split(into=4, loss="sum"), trained)


def test_split_merges_lstm_states_along_the_second_dimension(tmp_path):
    arguments = {"hidden": 8, "seq_len": 4, "batch_size": 1, "microbatches": 2, "steps": 1}

    assert_same_by("split", fixture_of(lstm.train, tmp_path, {**arguments, "layers": 1}))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "arguments"),
    [
        (gpt, {**LANGUAGE, "clip": 0.1, "steps": 2}),
        (gpt, {**LANGUAGE, "fp8": True, "steps": 2}),
        (llama, {**LANGUAGE, "kv_heads": 1, "ffn": 16}),
        (moe, {**LANGUAGE, "kv_heads": 1, "ffn": 16}),
        (moe, {**LANGUAGE, "kv_heads": 1, "ffn": 16, "balance": 0.0}),
        (deepseek, {**LANGUAGE, "dense_layers": 0, "ffn": 16, "clip": 0.1, "steps": 2}),
        (cnn, {"channels": 4, "size": 8}),
        (masked, {**SMALL, "fp8": True, "steps": 2}),
    ],
)
def test_the_declared_relations_hold_for_a_reference_model_in_every_dtype(
    program, arguments, tmp_path
):
    rungs = ("float64",) if arguments.get("fp8") else ("float64", "float32", "bfloat16")
    trained = fixture_of(program.train, tmp_path, arguments, dtypes=rungs)
    held = 0

    for relation in program.train.trainsafe_traits.relations:
        try:
            assert_same_by(relation, trained)
        except RelationError:
            continue
        held += 1

    assert held
