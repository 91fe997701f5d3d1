"""Relations, and packs learned once from synthetic programs, for tests of the learn judge."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from pytest_trainsafe.judges.learn.inference.learn import Learned, learn
from pytest_trainsafe.judges.learn.packs.pack import Pack, pack_of
from pytest_trainsafe.judges.learn.registry import relations as load
from pytest_trainsafe.judges.learn.relation import Relation
from tests.support.learn.training_loops import LEARNED, Plan, run_of


@pytest.fixture(scope="session")
def relations() -> Mapping[str, Relation]:
    """The package's relations."""
    return load()


@pytest.fixture(scope="session")
def learned() -> Learned:
    """The result of learning from eight healthy programs of one process."""
    return learn([run_of(plan) for plan in LEARNED.values()])


@pytest.fixture(scope="session")
def pack(learned: Learned) -> Pack:
    """A pack of eight healthy programs."""
    return pack_of("pytorch", learned)


@pytest.fixture(scope="session")
def ranks_pack() -> Pack:
    """A pack of two healthy programs on four ranks."""
    plans = [
        Plan("d1", dp=2, tp=2, steps=4, evaluate=False),
        Plan("d2", dp=2, tp=2, steps=4, evaluate=False, optimizer="SGD", clip=False),
    ]
    return pack_of("distributed", learn([run_of(plan) for plan in plans]))
