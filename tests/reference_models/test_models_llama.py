"""The single-device Llama learns, and its parts compute rotary positions, norms and attention."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pytest_trainsafe.reference_models import llama
from pytest_trainsafe.reference_models.blocks.attention import attend
from pytest_trainsafe.reference_models.blocks.norm import EPSILON, RMSNorm
from pytest_trainsafe.reference_models.blocks.rotary import RotaryTables, turn
from pytest_trainsafe.reference_models.config import LlamaConfig
from pytest_trainsafe.reference_models.networks.llama import Llama
from pytest_trainsafe.reference_models.parallel.apply import parallel_llama
from pytest_trainsafe.reference_models.parallel.axes import Axes, Axis
from tests.support.reference_models.rank_double import Double, Job, run_here


def test_the_llama_learns() -> None:
    job = Job(arguments={"steps": 20, "learning_rate": 1e-2}, dtype="bfloat16", program="llama")
    run = run_here(job)

    assert 5.3 < run.loss(0) < 6.2
    assert run.loss(19) < run.loss(0) - 1.0


def test_rotary_products_depend_only_on_the_distance() -> None:
    torch.manual_seed(0)
    query, key = torch.randn(2, 1, 1, 16, dtype=torch.float64)
    tables = RotaryTables(LlamaConfig().head_dim)

    def product(at_query: int, at_key: int) -> float:
        turned = [
            turn(tensor, *tables(torch.tensor([[place]])))
            for tensor, place in ((query, at_query), (key, at_key))
        ]
        return float((turned[0] * turned[1]).sum())

    assert product(5, 2) == pytest.approx(product(23, 20), rel=1e-12)
    assert product(5, 2) != pytest.approx(product(5, 3), rel=1e-3)


def test_rotary_tables_stay_float64_in_a_bfloat16_model() -> None:
    cosine, _ = Llama(LlamaConfig()).bfloat16().rotary_tables(torch.tensor([[3001]]))

    assert cosine.dtype == torch.float64
    assert float(cosine[0, 0, 0]) == pytest.approx(float(torch.tensor(3001.0).double().cos()))


def test_consecutive_query_heads_share_a_key_head() -> None:
    torch.manual_seed(0)
    query = torch.randn(1, 6, 4 * 8)
    key, value = torch.randn(2, 1, 6, 2 * 8)
    positions = torch.arange(6)

    grouped = attend(query, key, value, 8, positions)

    alone = [
        attend(
            query[..., 8 * head : 8 * head + 8],
            key[..., 8 * (head // 2) : 8 * (head // 2) + 8],
            value[..., 8 * (head // 2) : 8 * (head // 2) + 8],
            8,
            positions,
        )
        for head in range(4)
    ]
    torch.testing.assert_close(grouped, torch.cat(alone, dim=-1))


def test_rms_norm_equals_that_of_torch() -> None:
    torch.manual_seed(0)
    hidden = torch.randn(3, 5, 8, dtype=torch.float64)
    norm = RMSNorm(8).double()
    torch.nn.init.normal_(norm.weight)

    expected = torch.nn.functional.rms_norm(hidden, (8,), norm.weight, EPSILON)

    torch.testing.assert_close(norm(hidden), expected)


def test_the_parallel_llama_has_no_parallel_modules_on_one_rank() -> None:
    plain, swapped = (
        [type(module) for module in model.modules()]
        for model in (Llama(LlamaConfig()), parallel_llama(LlamaConfig(), Axes()))
    )

    assert swapped == plain


def test_all_annotations_of_the_llama_match_a_module_or_parameter() -> None:
    double: Any = Double(Job(program="llama"))

    llama.train(double, steps=0, hidden=96)

    assert double.unmatched == []


def test_incompatible_sizes_of_the_llama_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"heads=4 cannot share kv_heads=3"):
        LlamaConfig(kv_heads=3)
    with pytest.raises(ValueError, match=r"gives heads of width 3"):
        LlamaConfig(hidden=12)
    with pytest.raises(ValueError, match=r"kv_heads=2 must be a multiple of 4"):
        parallel_llama(LlamaConfig(), Axes(tp=Axis(4)))
