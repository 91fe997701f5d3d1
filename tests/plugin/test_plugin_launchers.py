"""A launcher is added by name through the hook alone, and chosen by `--trainsafe-launcher`."""

from __future__ import annotations

import pytest

TOY = '''
"""A launcher that starts each rank by subprocess: in the test process, and in the starter."""

import os
import socket
import subprocess
import sys
import threading

from pytest_trainsafe.launch import environment, rank_command, run_command


# Before Python 3.13 pytest's import of a module may fail in another thread than the main one.
IN_MAIN = threading.current_thread() is threading.main_thread()


class Toy:
    name = "toy"

    def __init__(self, setup):
        assert setup.network == "auto"
        assert IN_MAIN, "imported in another thread"

    def run(self, task, *, timeout, workdir, stop=None, environ=None):
        return run_command(
            task,
            lambda file: [sys.executable, __file__, str(task.world_size), *rank_command(file)],
            environ=environment(task, os.environ if environ is None else environ),
            timeout=timeout,
            workdir=workdir,
            stop=stop,
        )

    def close(self):
        open("closed", "w").close()


def start(world, command):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        names = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
    names |= dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), str(world)) | {"TOY": "1"}
    ranks = [
        subprocess.Popen(command, env={**os.environ, **names, "RANK": rank, "LOCAL_RANK": rank})
        for rank in map(str, range(world))
    ]
    return max([abs(rank.wait()) for rank in ranks])


if __name__ == "__main__":
    # The starter imports this file, and with it nothing that is slow.
    sys.exit(start(int(sys.argv[1]), sys.argv[2:]))
'''

TEST = """
import os

import pytest
import torch
import torch.distributed as dist


def train(ctx):
    assert os.environ["TOY"] == "1"
    net = torch.nn.Linear(4, 3).to(ctx.dtype)
    ctx.initialize(net)
    sgd = torch.optim.SGD(net.parameters(), lr=0.1)
    ctx.watch(net, sgd)
    with ctx.step():
        for index in ctx.microbatches(2):
            with ctx.microbatch(index):
                torch.manual_seed(index)
                loss = net(torch.randn(5, 4, dtype=ctx.dtype)).square().mean()
                ctx.loss(loss)
                loss.backward()
        for parameter in net.parameters():
            dist.all_reduce(parameter.grad, group=ctx.group("dp"))
        sgd.step()


def fail():
    if os.environ["TOY"]:
        raise ValueError("the toy rank failed")


@pytest.mark.trainsafe(train, dp=2)
def test_clean(candidate_trace):
    first, second = candidate_trace.at("float32").ranks
    compared = [id for id in first.tensors if id.kind in ("main_grad", "param")]
    assert len(compared) == 6
    assert all(first.tensors[id].hash == second.tensors[id].hash for id in compared)


def test_failing(torchrun_group):
    torchrun_group.run(fail, world_size=1)
"""


@pytest.fixture
def project(pytester: pytest.Pytester, write_ini) -> pytest.Pytester:
    pytester.makepyfile(toy=TOY, test_it=TEST)
    write_ini()
    return pytester


def write_hook(project: pytest.Pytester, launchers: object) -> None:
    project.makeconftest(f"def pytest_trainsafe_launchers(config):\n    return {launchers!r}\n")


def test_a_launcher_of_the_hook_runs_a_clean_point_and_a_failing_rank(project):
    write_hook(project, {"toy": "toy:Toy"})

    result = project.runpytest_inprocess("-q", "--trainsafe-launcher", "toy")

    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*rank 0 of 1 raised ValueError: the toy rank failed*"])
    assert (project.path / "closed").exists()


def test_an_unknown_launcher_is_refused_with_a_list_of_the_known_ones(project):
    write_hook(project, {"toy": "toy:Toy"})

    result = project.runpytest_inprocess("-q", "--trainsafe-launcher", "slurm")

    result.stderr.fnmatch_lines(["*takes one of auto, warm, torchrun, threads, toy, not 'slurm'*"])


@pytest.mark.parametrize(
    ("launchers", "words"),
    [
        (["toy:Toy"], "must return a dict such as"),
        ({"toy": "toy.py"}, "returned 'toy.py' for 'toy'; it must return the import path of"),
        ({"A Toy": "toy:Toy"}, "returned the name 'A Toy'; the name of a"),
        ({"warm": "toy:Toy"}, "returned 'warm', which is already the name of a launcher"),
    ],
)
def test_an_invalid_return_value_of_the_launchers_hook_is_a_usage_error(project, launchers, words):
    write_hook(project, launchers)

    with pytest.raises(pytest.UsageError, match=words):
        project.parseconfigure("-q")
