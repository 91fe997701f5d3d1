"""Without a layout or a reference, the values that two ranks keep show that they are replicas."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from pytest_trainsafe.core.point import Point
from pytest_trainsafe.judges.replay.rng.ledger_rules import judge_rng
from tests.support.replay.ledger_traces import mask, write

#: Masks of a 4x8 tensor: both keep most elements, and each drops others.
MASKS = [torch.arange(32).reshape(4, 8) % 5 != left for left in (0, 1)]
VALUES = torch.linspace(1.0, 2.0, 32).reshape(4, 8)


def drawn(at: dict[str, int]):
    yield mask(at["tp"])


def same(at: dict[str, int]):
    yield mask(1)


def replicas(at: dict[str, int]) -> torch.Tensor:
    return VALUES * MASKS[at["tp"]]


def shards(at: dict[str, int]) -> torch.Tensor:
    return (VALUES + at["tp"]) * MASKS[at["tp"]]


def few(at: dict[str, int]) -> torch.Tensor:
    """Both ranks keep only 7 equal values."""
    both = torch.arange(32).reshape(4, 8) < 7
    return VALUES * (both | (torch.arange(32).reshape(4, 8) % 2 == at["tp"]) & (VALUES > 1.5))


def test_ranks_that_mask_one_tensor_differently_are_found(tmp_path: Path) -> None:
    judgement = judge_rng(write(tmp_path / "a", Point.of(tp=2), drawn, replicas))
    [finding] = judgement.findings
    assert (finding.check, finding.verdict) == ("rng:tp_different_dropout", "inconclusive")
    assert finding.pattern is not None
    assert 'expect_rng("drop", different="tp")' in finding.pattern.cause


@pytest.mark.parametrize("output", [shards, few, None])
def test_ranks_that_may_hold_shards_may_mask_them_differently(tmp_path: Path, output) -> None:
    judgement = judge_rng(write(tmp_path / "a", Point.of(tp=2), drawn, output))
    assert not judgement.findings
    [note] = judgement.not_compared
    assert note.endswith("it is not known whether its input is sharded over tp")


def test_ranks_that_mask_one_tensor_alike_pass(tmp_path: Path) -> None:
    trace = write(tmp_path / "a", Point.of(tp=2), same, lambda at: VALUES * MASKS[0])
    assert not judge_rng(trace).findings
