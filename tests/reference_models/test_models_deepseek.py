"""The single-device DeepSeek: latent attention, biased routers, shared experts, further tokens."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch

from pytest_trainsafe.core.point import Point
from pytest_trainsafe.reference_models import deepseek
from pytest_trainsafe.reference_models.blocks.deepseek_moe import DeepSeekMoE, Weights
from pytest_trainsafe.reference_models.blocks.latent import LatentAttention
from pytest_trainsafe.reference_models.blocks.prediction import Following
from pytest_trainsafe.reference_models.blocks.rotary import RotaryTables, turn
from pytest_trainsafe.reference_models.blocks.routing import BiasedSelection
from pytest_trainsafe.reference_models.bugs import NAMES, OF_DEEPSEEK
from pytest_trainsafe.reference_models.config import DeepSeekConfig
from pytest_trainsafe.reference_models.networks.deepseek import DeepSeek
from pytest_trainsafe.reference_models.parallel.axes import Axes, Axis
from pytest_trainsafe.reference_models.parallel.deepseek.apply_deepseek import parallel_deepseek
from tests.support.reference_models.rank_double import Double, Job, run_here


def test_the_deepseek_learns() -> None:
    given = {"layers": 1, "dense_layers": 0, "steps": 12, "learning_rate": 1e-2}
    run = run_here(Job(arguments=given, dtype="bfloat16", program="deepseek"))

    assert 7.0 < run.loss(0) < 8.0  # 1.3 times that of a uniform guess
    assert run.loss(11) < run.loss(0) - 1.0


def test_latent_attention_equals_attention_to_the_latent_vectors_themselves() -> None:
    # The projections from the latent vector move to the queries and to the output (DeepSeek-V2,
    # section 2.1.2), so that all heads attend to one narrow vector.
    torch.manual_seed(0)
    config = DeepSeekConfig(hidden=12, heads=3, q_rank=5, kv_rank=7, rope_dim=2, seq_len=6)
    attention = LatentAttention(config).double()
    hidden = torch.randn(2, 6, 12, dtype=torch.float64)
    tables = RotaryTables(config.rope_dim)(torch.arange(6)[None])

    queries = attention.linear_q_up_proj(
        attention.q_layernorm(attention.linear_q_down_proj(hidden))
    )
    plain, turning = queries[..., :12].unflatten(-1, (3, 4)), queries[..., 12:]
    latent, rotated = attention.linear_kv_down_proj(hidden).split([7, 2], dim=-1)
    latent, rotated = attention.kv_layernorm(latent), turn(rotated, *tables)
    of_keys, of_values = attention.linear_kv_up_proj.get_parameter("weight").view(2, 3, 4, 7)
    scores = torch.einsum("bqhd,hdc,bkc->bhqk", plain, of_keys, latent)
    turned = turn(turning, *tables).unflatten(-1, (3, 2))
    scores = scores + torch.einsum("bqhr,bkr->bhqk", turned, rotated)
    later = torch.ones(6, 6, dtype=torch.bool).triu(1)
    shares = (scores / 6**0.5).masked_fill(later, -torch.inf).softmax(dim=-1)
    values = torch.einsum("bhqk,bkc,hdc->bqhd", shares, latent, of_values)

    expected = attention.linear_proj(values.flatten(2))
    torch.testing.assert_close(attention(hidden, *tables), expected)


def test_a_bias_changes_the_choice_of_experts_and_not_their_weights() -> None:
    config = DeepSeekConfig(route_scale=2.0)
    selection, scores = BiasedSelection(config), torch.tensor([[[0.1, 0.6, 0.3, 0.2]]])
    assert selection(scores).tolist() == [[[1, 2]]]

    selection.bias = torch.tensor([0.0, 0.0, 0.0, 0.5])

    chosen = selection(scores)
    assert chosen.tolist() == [[[3, 1]]]
    torch.testing.assert_close(Weights(config)(scores, chosen), torch.tensor([[[0.5, 1.5]]]))


def test_after_a_step_the_bias_of_an_expert_that_was_chosen_too_often_falls() -> None:
    selection = BiasedSelection(DeepSeekConfig(bias_speed=0.25))
    selection.count(torch.tensor([[[0, 1], [0, 2]]]))
    with torch.no_grad():
        selection.count(torch.tensor([[[3, 3]]]))  # the first run of a layer that is recomputed

    selection.update(selection.counts)

    assert selection.bias.tolist() == [-0.25, 0.0, 0.0, 0.25]
    assert selection.counts.tolist() == [0, 0, 0, 0]


def test_biases_stay_float32_in_a_narrow_model() -> None:
    selection = BiasedSelection(DeepSeekConfig())
    selection.bias += 0.001

    assert selection.to(torch.bfloat16).bias.dtype == torch.float32
    assert selection.bias[0] == torch.tensor(0.001)
    assert selection.double().bias.dtype == torch.float64


def test_shared_experts_have_all_tokens() -> None:
    torch.manual_seed(0)
    layer = DeepSeekMoE(DeepSeekConfig(shared=2)).double()
    torch.nn.init.normal_(layer.router.get_parameter("weight"))
    hidden = torch.randn(1, 3, 64, dtype=torch.float64)

    routed = layer(hidden) - layer.shared_experts(hidden)

    scores = layer.router(hidden)
    chosen = layer.selection(scores)
    torch.testing.assert_close(routed, layer.experts(hidden, chosen, layer.weights(scores, chosen)))
    assert layer.shared_experts.linear_fc2.weight.shape == (64, 2 * 32)


def test_the_last_position_has_no_further_target() -> None:
    assert Following()(torch.tensor([[4, 5, 6], [1, 2, 3]])).tolist() == [[5, 6, -1], [2, 3, -1]]


def test_the_further_token_uses_the_weights_of_embedding_and_output_layer() -> None:
    model = parallel_deepseek(DeepSeekConfig(), Axes(tp=Axis(2, 1), sp=True))

    assert model.mtp.embedding.word_embeddings.weight is model.embedding.word_embeddings.weight
    assert model.mtp.output_layer.weight is model.output_layer.weight
    assert not [name for name, _ in model.named_parameters() if "mtp.output_layer" in name]


def test_the_parallel_deepseek_has_no_parallel_modules_on_one_rank() -> None:
    plain, swapped = (
        [type(module) for module in model.modules()]
        for model in (DeepSeek(DeepSeekConfig()), parallel_deepseek(DeepSeekConfig(), Axes()))
    )

    assert swapped == plain


@pytest.mark.parametrize("dense_layers", [0, 3])
def test_all_annotations_of_the_deepseek_match_a_module_or_parameter(dense_layers) -> None:
    double: Any = Double(Job(program="deepseek"))

    deepseek.train(double, steps=0, hidden=96, dense_layers=dense_layers)

    assert double.unmatched == []


@pytest.mark.parametrize(
    ("point", "arguments", "reason"),
    [
        (Point.of(tp=2, ep=2), {}, "ep=2 does not divide dp*cp=1"),
        (Point.of(tp=2), {"expert_ffn": 5}, "expert_ffn=5 is not divisible"),
        (Point.of(pp=2), {"schedule": "torch-1f1b"}, "schedule='torch-1f1b' first runs"),
        (Point.of(), {"rope_dim": 3}, "rope_dim=3 is odd"),
        (Point.of(), {"top_k": 5}, "top_k=5 is greater than experts=4"),
        (Point.of(dp=2, pp=2, vpp=1, ep=2, zero=1, recompute="full"), {}, None),
    ],
)
def test_the_rules_of_the_deepseek_refuse_invalid_points_with_a_reason(
    point, arguments, reason
) -> None:
    parameters = list(inspect.signature(deepseek.train).parameters.values())[1:]
    defaults = {parameter.name: parameter.default for parameter in parameters}

    program: Any = deepseek.train
    reasons = [rule(point, {**defaults, **arguments}) for rule in program.trainsafe_rules]

    found = [each for each in reasons if each is not None]
    assert found[0].startswith(reason) if reason else found == [], found


def test_the_bugs_of_the_deepseek_are_plantable_and_have_names_of_their_own() -> None:
    assert len(set(NAMES)) == len(NAMES)
    for bug in OF_DEEPSEEK:
        parallel_deepseek(DeepSeekConfig(), Axes(tp=Axis(2, 1), cp=Axis(2, 1), bug=bug.name))
