"""What ranks share because they share a process is each rank's own."""

from __future__ import annotations

import ctypes
import importlib
import os
import random
import sys
import textwrap
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.modules.module import register_module_forward_hook

from pytest_trainsafe.core.rank import current_rank
from pytest_trainsafe.core.rank import state as rank_state
from pytest_trainsafe.core.schedule import Schedule
from pytest_trainsafe.launch.threads import modules
from pytest_trainsafe.record.adapter import activate
from tests.support.launch.in_turn import in_turn

WORLD = 3
DRAWN = Schedule(seed=7)


def draw() -> tuple[float, float, float]:
    """One number of each default generator."""
    return torch.rand(1).item(), random.random(), float(np.random.rand())


@pytest.mark.parametrize("schedule", [Schedule(), DRAWN])
def test_ranks_with_one_seed_draw_the_same(schedule: Schedule) -> None:
    """However they take turns."""

    def program() -> list[Any]:
        torch.manual_seed(7)
        random.seed(7)
        np.random.seed(7)
        found = []
        for _ in range(3):
            dist.barrier()
            found.append(draw())
        return found

    found = in_turn(program, WORLD, schedule)
    assert found[0] == found[1] == found[2]
    assert len({each for each, *_ in found[0]}) == 3


def test_ranks_without_a_seed_draw_other_numbers() -> None:
    """As processes do, except for torch, which the helper seeds."""

    def program() -> tuple[float, float]:
        dist.barrier()
        return random.random(), float(np.random.rand())

    found = in_turn(program, WORLD)
    assert len({each[0] for each in found}) == len({each[1] for each in found}) == WORLD


def test_settings_belong_to_the_rank_that_made_them() -> None:
    """The default dtype, determinism, grad mode, autocast, filters of warnings, and argv."""

    def program() -> tuple[Any, ...]:
        rank = dist.get_rank()
        if rank == 1:
            torch.set_default_dtype(torch.float64)
            torch.use_deterministic_algorithms(True, warn_only=True)
            warnings.simplefilter("ignore")
            sys.argv.append("mine")
        with torch.set_grad_enabled(rank != 1), torch.autocast("cpu", enabled=rank == 1):
            dist.barrier()
            return (
                torch.empty(1).dtype,
                torch.are_deterministic_algorithms_enabled(),
                warnings.filters[0][0] == "ignore" and warnings.filters[0][2] is Warning,
                sys.argv[-1] == "mine",
                not torch.is_grad_enabled(),
                torch.is_autocast_enabled("cpu"),
            )

    before = torch.get_default_dtype(), torch.are_deterministic_algorithms_enabled()
    found = in_turn(program, WORLD)
    assert found[1] == (torch.float64, True, True, True, True, True)
    assert found[0] == found[2] == (torch.float32, False, False, False, False, False)
    assert before == (torch.get_default_dtype(), torch.are_deterministic_algorithms_enabled())


def test_each_rank_has_its_own_environment() -> None:
    """In Python and in the C library."""
    getenv = ctypes.CDLL(None).getenv
    getenv.restype = ctypes.c_char_p

    def program() -> tuple[str | None, bytes | None, str, int]:
        rank = dist.get_rank()
        os.environ["MINE"] = str(rank)
        if rank == 1:
            del os.environ["MINE"]
        dist.barrier()
        return os.environ.get("MINE"), getenv(b"MINE"), os.environ["RANK"], current_rank().rank

    found = in_turn(program, WORLD)
    assert found == [("0", b"0", "0", 0), (None, None, "1", 1), ("2", b"2", "2", 2)]
    assert "MINE" not in os.environ


def test_hooks_of_all_modules_are_called_for_the_modules_of_their_rank() -> None:
    """A rank registers a hook for all modules of its process."""

    def program() -> int:
        calls: list[int] = []
        if dist.get_rank() == 1:
            register_module_forward_hook(lambda *_: calls.append(1))
        dist.barrier()
        nn.Linear(1, 1)(torch.ones(1))
        dist.barrier()
        return len(calls)

    assert in_turn(program, WORLD) == [0, 1, 0]


def test_each_rank_has_its_own_modules_of_the_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program keeps its rank in a variable of a module."""
    source = """
        import torch.distributed as dist

        RANK, SEEN = None, []

        def begin():
            global RANK
            RANK = dist.get_rank()
            SEEN.append(RANK)
            dist.barrier()
            return RANK, SEEN
    """
    (tmp_path / "module_of_a_program.py").write_text(textwrap.dedent(source))
    monkeypatch.syspath_prepend(tmp_path)

    def program() -> Any:
        return importlib.import_module("module_of_a_program").begin()

    assert in_turn(program, WORLD) == [(rank, [rank]) for rank in range(WORLD)]


STATE = """
import torch.distributed as dist

GROUP = None


def begin():
    global GROUP, LATER
    GROUP = LATER = dist.get_rank()
    dist.barrier()
    return GROUP, LATER
"""


ADAPTER = """
from pytest_trainsafe.record.adapter import Adapter


class OfTheFramework(Adapter):
    per_rank = (("{module}",),)
"""


@pytest.mark.parametrize("imported_before", [True, False])
@pytest.mark.parametrize("declared", [True, False])
def test_a_framework_has_the_variables_of_the_rank_if_its_adapter_names_them(
    declared: bool, imported_before: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A module that is imported once for all ranks, before them or by the first of them."""
    name = f"state_of_a_framework_{declared}_{imported_before}".lower()
    (tmp_path / f"{name}.py").write_text(STATE)
    (tmp_path / f"adapter_of_{name}.py").write_text(ADAPTER.format(module=name))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(modules, "_is_program", lambda module: False)
    monkeypatch.setattr(rank_state, "modules", dict(rank_state.modules))
    if imported_before:
        importlib.import_module(name)

    def program() -> Any:
        if declared:
            activate([f"adapter_of_{name}:OfTheFramework"])
        state = importlib.import_module(name)
        seen = state.GROUP, hasattr(state, "LATER")
        return seen, state.begin()

    found = in_turn(program, WORLD)
    begun = [each for _, each in found]
    assert (begun == [(rank, rank) for rank in range(WORLD)]) is declared
    assert all(seen == (None, False) for seen, _ in found) is declared


COUNTS = """
import {first}

GROUPS = {{}}


class Registry:
    number = 0

    @staticmethod
    def register(count=[0]):
        count[0] += 1
        Registry.number += 1
        GROUPS[len(GROUPS)] = count[0]
        return count[0], Registry.number, dict(GROUPS)
"""

COUNTING = """
from pytest_trainsafe.record.adapter import Adapter


class Counting(Adapter):
    per_rank = (
        ("{name}", "GROUPS", "Registry.number", "Registry.register.__defaults__"),
        ("{first}", "SEEN"),
    )
"""


def test_ranks_have_their_own_containers_attributes_of_classes_and_defaults(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Although the import of another module that is kept ends before that of this one."""
    name, first = "counts_of_a_framework", "first_of_a_framework"
    (tmp_path / f"{first}.py").write_text("SEEN = []\n")
    (tmp_path / f"{name}.py").write_text(COUNTS.format(first=first))
    (tmp_path / "counting_adapter.py").write_text(COUNTING.format(name=name, first=first))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(modules, "_is_program", lambda module: False)
    monkeypatch.setattr(rank_state, "modules", dict(rank_state.modules))

    def program() -> Any:
        activate(["counting_adapter:Counting"])
        registry = importlib.import_module(name).Registry
        registry.register()
        dist.barrier()
        return registry.register()

    assert in_turn(program, WORLD) == [(2, 2, {0: 1, 1: 2})] * WORLD


def test_a_training_step_has_the_same_bits_in_twenty_runs() -> None:
    """With dropout, several terms in each sum, and an order of turns that is drawn."""

    def program() -> bytes:
        torch.manual_seed(dist.get_rank())
        model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.3), nn.Linear(8, 8))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            model(torch.randn(4, 8)).pow(2).sum().backward()
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad, dist.ReduceOp.AVG)
            optimizer.step()
            optimizer.zero_grad()
        return b"".join(p.detach().numpy().tobytes() for p in model.parameters())

    runs = {tuple(in_turn(program, WORLD, Schedule(seed=seed % 4))) for seed in range(20)}
    assert len(runs) == 1


def test_a_group_in_a_process_leaves_no_state_of_its_ranks_behind() -> None:
    before = vars(dist.distributed_c10d)["_world"]

    assert in_turn(dist.get_world_size, WORLD) == [WORLD] * WORLD
    assert vars(dist.distributed_c10d)["_world"] is before
    assert not dist.is_initialized()
