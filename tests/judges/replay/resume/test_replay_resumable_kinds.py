"""Programs of `reference_models.resumable` resume from a checkpoint bit for bit.

`benchmarks/bench_resume.py` runs all of them, from four checkpoints each.
"""

from __future__ import annotations

import importlib

import pytest

from pytest_trainsafe import assert_resumable
from pytest_trainsafe.judges.replay.resume.arguments import resumption_of
from pytest_trainsafe.judges.replay.resume.judge import judge_resumable
from pytest_trainsafe.reference_models.resumable import KINDS, Kind
from pytest_trainsafe.reference_models.resumable.training import Data
from tests.support.replay.in_process import traces_here

#: Kinds of one rank with different state, and where they are interrupted: in the second epoch of
#: the data; between the steps of two optimizers; before layers are recomputed with their dropout.
INTERRUPTED = {"CNN with augmentation": 4, "GAN": 1, "GPT, accumulation and recompute": 1}

CHEAP = [kind for kind in KINDS if kind.name in INTERRUPTED]


def traces(kind: Kind, folder):
    """The equivalent of the fixture `candidate_trace`, for a program of one rank."""
    module, _, name = kind.program.partition(":")
    train = getattr(importlib.import_module(module), name)

    def program(ctx, **keywords):
        train(ctx, **kind.arguments, **keywords)

    return traces_here(program, folder, program=train)


@pytest.mark.parametrize("kind", CHEAP, ids=lambda kind: kind.name)
def test_a_resumable_program_resumes_bit_for_bit(kind, tmp_path):
    at_step = INTERRUPTED[kind.name]

    assert_resumable(traces(kind, tmp_path), at_step=at_step, steps=at_step + 1)


def test_an_unrestored_position_in_the_data_is_reported_as_data_order(tmp_path, monkeypatch):
    monkeypatch.setattr(Data, "load_state_dict", lambda data, state: None)
    candidate = traces(CHEAP[0], tmp_path)

    judgement = judge_resumable(candidate, resumption_of(candidate, 4, 5))

    assert "resume:data_order" in [finding.check for finding in judgement.findings]
