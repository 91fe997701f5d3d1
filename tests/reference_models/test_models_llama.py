"""The single-device Llama: it learns, and its parts are what their names say."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from rank_double import Double, Job, run_here

from pytest_trainsafe.reference_models import llama
from pytest_trainsafe.reference_models.blocks.attention import attend
from pytest_trainsafe.reference_models.blocks.norm import EPSILON, RMSNorm
from pytest_trainsafe.reference_models.blocks.rotary import RotaryTables, turn
from pytest_trainsafe.reference_models.config import LlamaConfig
from pytest_trainsafe.reference_models.networks.llama import Llama
from pytest_trainsafe.reference_models.parallel.apply import parallel_llama
from pytest_trainsafe.reference_models.parallel.axes import Axes, Axis


def test_it_learns() -> None:
    job = Job(arguments={"steps": 20, "learning_rate": 1e-2}, dtype="bfloat16", program="llama")
    run = run_here(job)

    assert 5.3 < run.loss(0) < 6.2
    assert run.loss(19) < run.loss(0) - 1.0


def test_rotary_products_depend_on_the_distance_alone() -> None:
    torch.manual_seed(0)
    query, key = torch.randn(2, 1, 1, 16, dtype=torch.float64)
    tables = RotaryTables(LlamaConfig())

    def product(at_query: int, at_key: int) -> float:
        turned = [
            turn(tensor, *tables(torch.tensor([[place]])))
            for tensor, place in ((query, at_query), (key, at_key))
        ]
        return float((turned[0] * turned[1]).sum())

    assert product(5, 2) == pytest.approx(product(23, 20), rel=1e-12)
    assert product(5, 2) != pytest.approx(product(5, 3), rel=1e-3)


def test_rotary_tables_keep_their_precision_in_a_narrow_model() -> None:
    cosine, _ = Llama(LlamaConfig()).bfloat16().rotary_tables(torch.tensor([[3001]]))

    assert cosine.dtype == torch.float64
    assert float(cosine[0, 0, 0]) == pytest.approx(float(torch.tensor(3001.0).double().cos()))


def test_a_head_of_keys_serves_consecutive_heads_of_queries() -> None:
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


def test_rms_norm_is_torchs() -> None:
    torch.manual_seed(0)
    hidden = torch.randn(3, 5, 8, dtype=torch.float64)
    norm = RMSNorm(8).double()
    torch.nn.init.normal_(norm.weight)

    expected = torch.nn.functional.rms_norm(hidden, (8,), norm.weight, EPSILON)

    torch.testing.assert_close(norm(hidden), expected)


def test_on_one_rank_no_module_is_a_parallel_one() -> None:
    plain, swapped = (
        [type(module) for module in model.modules()]
        for model in (Llama(LlamaConfig()), parallel_llama(LlamaConfig(), Axes()))
    )

    assert swapped == plain


def test_all_annotations_match_something() -> None:
    double: Any = Double(Job(program="llama"))

    llama.train(double, steps=0, hidden=96)

    assert double.unmatched == []


def test_sizes_that_do_not_fit_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"heads=4 cannot share kv_heads=3"):
        LlamaConfig(kv_heads=3)
    with pytest.raises(ValueError, match=r"gives heads of width 3"):
        LlamaConfig(hidden=12)
    with pytest.raises(ValueError, match=r"kv_heads=2 must be a multiple of 4"):
        parallel_llama(LlamaConfig(), Axes(tp=Axis(4)))
