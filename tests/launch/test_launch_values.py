"""Every rank of a group returns its value to the test."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
import torch

from pytest_trainsafe.launch import GroupResult, Launcher, Script, Task
from tests.support.launch import programs
from tests.support.launch.programs import PROCESSES, Launch


def test_every_rank_returns_its_value(launch: Launch) -> None:
    tensor = torch.tensor([0.1, float("nan"), -0.0], dtype=torch.bfloat16)
    result = launch(programs.echo, 1, (2, "3"), key=tensor, env={"ADDED": "by the task"})
    values = result.values
    assert [value["rank"] for value in values] == [0, 1]
    for value in values:
        assert value["args"] == (1, (2, "3"))
        assert torch.equal(value["kwargs"]["key"].view(torch.int16), tensor.view(torch.int16))
        assert value["total"].item() == 3.0
        assert value["total"].dtype == torch.float64
        assert value["cwd"] == os.getcwd()
        assert value["threads"] == 1
    assert values[1]["environ"] == {
        "WORLD_SIZE": "2",
        "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "2",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        # the ranks join the store of torchrun's agent: no process can take its port in between
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "MASTER_ADDR": "127.0.0.1",
        "OMP_NUM_THREADS": "1",
        "ADDED": "by the task",
    }
    lines = result.ranks[1].stdout.splitlines()
    # in some releases of torch, gloo prints there that it is connected
    assert [line for line in lines if not line.startswith("[Gloo]")] == ["rank 1 says hello"]
    assert result.leftovers == ()


@pytest.mark.parametrize("launcher", PROCESSES, indirect=True)
def test_scripts_run_as_main_from_several_threads_at_once(
    launcher: Launcher, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import os, sys\n"
        "import helper_next_to_the_script\n"
        "assert __name__ == '__main__'\n"
        "print(*sys.argv[1:], os.environ['RANK'], flush=True)\n"
        "sys.exit(0)\n"
    )
    (tmp_path / "helper_next_to_the_script.py").touch()
    results: dict[str, GroupResult] = {}

    def run(word: str) -> None:
        task = Task.of(Script(str(script), ("--word", word)), world_size=1)
        results[word] = launcher.run(task, timeout=60, workdir=tmp_path / "shared")

    threads = [threading.Thread(target=run, args=[word]) for word in ("one", "two")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results["one"].values == results["two"].values == [None]
    assert results["one"].ranks[0].stdout == "--word one 0\n"
    assert results["two"].ranks[0].stdout == "--word two 0\n"


def test_a_rank_that_finishes_early_stays_alive_until_the_others_finish(
    launch: Launch, tmp_path: Path
) -> None:
    """Its end would close connections that a slower rank is still making."""
    assert launch(programs.rank_0_is_early, str(tmp_path)).values == [
        "early",
        "rank 0 still lives",
    ]
