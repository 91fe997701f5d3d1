"""`python -m pytest_trainsafe learn` learns from plain scripts, checks them, and imports rules."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_trainsafe.__main__ import main
from pytest_trainsafe.judges.learn.packs.read import read_pack
from pytest_trainsafe.launch import Launcher, Task, raise_for_failure
from tests.support.learn.observed_programs import RULES

SCRIPT = """
import sys
import torch
from torch import nn

seed, wrong = int(sys.argv[1].partition("=")[2]), "--wrong" in sys.argv
torch.manual_seed(seed)
model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.1), nn.Linear(4, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
for step in range(5):
    model.train()
    if not wrong:
        optimizer.zero_grad()
    model(torch.randn(8, 4)).square().mean().backward()
    optimizer.step()
    model.eval()
    with torch.no_grad():
        model(torch.randn(8, 4))
"""

RANKS = """
import sys
import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("gloo")
torch.manual_seed(0 if "--same" in sys.argv else dist.get_rank())
model = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(4):
    optimizer.zero_grad()
    model(torch.randn(8, 4)).square().mean().backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
    optimizer.step()
print("trained", file=sys.stderr)
dist.destroy_process_group()
"""


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A training script in a project's root, which is the current folder."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


def learn(*arguments: str) -> int:
    """The exit status of the command."""
    return main(["learn", *arguments])


def test_a_script_is_learned_from_with_two_seeds_and_checked_with_a_third(
    script: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for seed in (0, 1):
        assert learn("--pack", "ours", "train.py", f"--seed={seed}") == 0
        shown = capsys.readouterr().out
        assert ("only after a run with a second seed has kept them too" in shown) is (seed == 0)
        if seed == 0:
            (new,) = re.findall(r"^\d+ new: (.*)$", shown, re.MULTILINE)
            assert re.fullmatch(r"(\d+ [a-z]+, )*\d+ [a-z]+", new)
            assert len(re.findall(r"^  .* \([a-z]+-[0-9a-f]+\)$", shown, re.MULTILINE)) == 5
    assert "learned from 2 runs of 1 program" in shown
    pack = read_pack(Path("invariants/ours.pack"), RULES)
    assert [*pack.programs] == ["train.py"]
    text = Path("invariants/ours.pack").read_text(encoding="utf-8")
    in_full = re.findall(r"^says = .*?^claim = [^\n]*", text, re.MULTILINE | re.DOTALL)
    assert 10 < len(in_full) <= 60
    # A period, and the graph of the first losses, have no single record that keeps them.
    of_records = [each for each in in_full if not re.search(r'"(periodic|graph)"', each)]
    assert all("\nexample = " in each for each in of_records)

    assert learn("--check", "ours,pytorch", "train.py", "--seed=2") == 0
    verdict, kept, *notes = capsys.readouterr().out.splitlines()
    assert verdict == "train.py: keeps ours,pytorch"
    number = re.fullmatch(
        r"kept: (\d+) of (\d+) invariants that applied; there are (\d+) in ours, pytorch, at .+",
        kept,
    )
    assert number is not None
    assert 10 < int(number[1]) == int(number[2]) < int(number[3])
    assert not re.search(r"[a-z]-[0-9a-f]{10}\b", " ".join(notes))
    assert all(note.startswith("not checked: ") for note in notes)
    assert learn("--check", "pytorch", "train.py", "--seed=2", "--wrong") == 1
    told = capsys.readouterr().out
    assert "trainsafe: train.py breaks learned invariants" in told
    assert "grad of some torch.nn.Parameter is cleared" in told


def test_a_script_that_fails_teaches_nothing(
    script: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script.write_text(SCRIPT + "\nsys.exit(3)\n")
    assert learn("--pack", "ours", "train.py", "--seed=0") == 2
    assert "ended with the status 3" in capsys.readouterr().err
    assert not Path("invariants/ours.pack").exists()
    assert learn("--pack", "ours", "nowhere.py") == 2
    assert "there is no such script" in capsys.readouterr().err


def test_what_a_script_sees_is_what_python_gives_it(
    script: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = list(sys.argv), list(sys.path)
    script.write_text(SCRIPT + "\nprint(__name__, sys.argv, sys.path[0])\n")
    assert learn("--pack", "ours", "train.py", "--seed=0", "-x") == 0
    said = capsys.readouterr().out.splitlines()[0]
    assert said == f"__main__ {['train.py', '--seed=0', '-x']} {script.parent}"
    assert (list(sys.argv), list(sys.path)) == before


@pytest.mark.processes
def test_ranks_that_torchrun_starts_are_checked_together_while_they_train(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(RANKS)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command += ["-m", "pytest_trainsafe", "learn", "--check", "ddp", "train.py"]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}

    done = subprocess.run(
        command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120
    )

    rule = "whose gradient is equal on two ranks is equal on them"
    assert rule in done.stdout
    assert rule in done.stderr.partition("trained")[0], "it is found after the training only"


def test_ranks_are_learned_from_together(
    script: Path, run_launcher: Launcher, tmp_path: Path
) -> None:
    """In forked ranks, with the environment that torchrun gives: they have imported torch."""
    script.write_text(RANKS)
    task = Task.of(learn, "--pack", "ours", "train.py", "--same", world_size=2)

    result = run_launcher.run(task, timeout=120, workdir=tmp_path / "group")

    raise_for_failure(result)
    assert result.values == [0, 0]
    assert "learned from 1 run of 1 program" in result.ranks[0].stdout
    pack = read_pack(tmp_path / "invariants/ours.pack", RULES)
    assert {"consistent", "agreement"} <= {each.claim.relation for each in pack.invariants}


def test_rules_of_traincheck_become_a_pack(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rule: dict[str, object] = {
        "text_description": "words",
        "relation": "DistinctArgumentRelation",
        "params": [],
        "precondition": None,
        "num_positive_examples": 3,
        "num_negative_examples": 0,
    }
    file = tmp_path / "theirs.json"
    file.write_text(json.dumps(rule) + "\n")
    assert learn("--pack", "theirs", "--root", str(tmp_path), "--from-traincheck", str(file)) == 0
    told = capsys.readouterr().out
    assert "1 were left out" in told or "1 invariants" in told
    assert (tmp_path / "invariants/theirs.pack").exists()
