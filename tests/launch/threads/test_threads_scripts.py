"""A script runs as `__main__` in each rank that is a thread, and has its own variables there."""

from __future__ import annotations

import textwrap
from pathlib import Path

from pytest_trainsafe.launch import Script, Task, ThreadsLauncher, raise_for_failure

SCRIPT = """
    import sys

    import torch
    import torch.distributed as dist
    from helper_of_a_script import STEPS

    dist.init_process_group("gloo")
    RANK = dist.get_rank()


    def step(number):
        tensor = torch.tensor([float(RANK)])
        dist.all_reduce(tensor)
        STEPS.append((RANK, number))
        return tensor.item()


    if __name__ == "__main__":
        sums = [step(number) for number in range(2)]
        assert sys.modules["__main__"].RANK == RANK == dist.get_rank()
        print(f"rank {RANK} of {sys.argv[1:]} has {sums} and {STEPS}")
        print(f"rank {RANK} warns", file=sys.stderr)
"""


def test_a_script_has_the_variables_of_its_rank(threads: ThreadsLauncher, tmp_path: Path) -> None:
    """In `__main__`, and in a module beside it."""
    (tmp_path / "script.py").write_text(textwrap.dedent(SCRIPT))
    (tmp_path / "helper_of_a_script.py").write_text("STEPS = []\n")
    task = Task.of(Script(str(tmp_path / "script.py"), ["--fast"]), world_size=3)

    result = threads.run(task, timeout=60, workdir=tmp_path)

    raise_for_failure(result)
    for rank in result.ranks:
        steps = [(rank.rank, 0), (rank.rank, 1)]
        assert rank.stdout == f"rank {rank.rank} of ['--fast'] has [3.0, 3.0] and {steps}\n"
        assert rank.stderr == f"rank {rank.rank} warns\n"
