"""The identity of a rank has one source, and everything else asks for it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import pytest_trainsafe
from pytest_trainsafe.core.rank import Rank, become, current_rank, identity, is_launched

PACKAGE = Path(pytest_trainsafe.__file__).parent
#: torchrun's variables that say which rank a process is.
IDENTITY = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"}
#: Writes torchrun's variables for the ranks that it starts.
WRITES = ("launch/torchrun/elastic.py",)


def reads(source: str) -> Iterator[int]:
    """The lines that read a variable of IDENTITY: by a subscript, a call, or `in`."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Subscript):
            named = [node.slice]
        elif isinstance(node, ast.Call):
            named = list(node.args) if _asks(node.func) else []
        elif isinstance(node, ast.Compare):
            named = [node.left, *node.comparators]
        else:
            continue
        if any(isinstance(each, ast.Constant) and each.value in IDENTITY for each in named):
            yield node.lineno


def _asks(function: ast.expr) -> bool:
    """Whether a function looks a name up, such as `os.getenv` or `environ.get`."""
    name = getattr(function, "attr", getattr(function, "id", ""))
    return name in ("get", "getenv", "pop", "setdefault")


@pytest.mark.parametrize(
    "source",
    ['os.environ["RANK"]', 'os.getenv("WORLD_SIZE", 1)', '"LOCAL_RANK" in os.environ'],
)
def test_a_read_of_the_identity_is_found(source: str) -> None:
    """So the test below could fail."""
    assert list(reads(source)) == [1]


def test_only_one_file_reads_the_identity_from_the_environment() -> None:
    """A rank may be a thread, whose variables are not those of its process."""
    found = []
    for file in sorted(PACKAGE.rglob("*.py")):
        name = file.relative_to(PACKAGE).as_posix()
        # Programs under test, which may read what torchrun documents.
        if name.startswith("reference_models/") or name in ("core/rank/identity.py", *WRITES):
            continue
        found += [f"{name}:{line}" for line in reads(file.read_text(encoding="utf-8"))]
    assert found == []


def test_a_rank_is_read_from_torchruns_variables() -> None:
    """Without them, there is one rank."""
    environ = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
    assert Rank.of(environ) == Rank(3, 4, 1, 2)
    assert Rank.of({}) == Rank(0, 1, 0, 1)


def test_the_current_rank_is_the_one_that_was_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """A launcher sets it; otherwise the environment says."""
    monkeypatch.setattr(identity, "_current", None)
    monkeypatch.delenv("RANK", raising=False)
    assert not is_launched()
    monkeypatch.setenv("RANK", "1")
    assert is_launched()
    assert current_rank().rank == 1
    become(Rank(2, 4))
    assert current_rank() == Rank(2, 4)


#: Where code that runs in ranks is.
IN_RANKS = ("record", "frameworks", "launch/collectives", "launch/console/breakpoints.py", "judges")

#: Global variables that belong to the process, whatever ranks it has.
OF_THE_PROCESS = {
    "record/reads/files.py _installed",  # an audit hook, which cannot be removed
    "record/program_dtype/random_operators.py _fallback",  # a library of torch, which stays
    "launch/collectives/ledger.py _wrapped",  # torch's functions, for all ranks
    "launch/collectives/ledger.py _connect",  # how a launcher's ranks make their groups
    "launch/collectives/flight_save.py _wrapped",  # torch's functions, for all ranks
}


def undeclared(source: str) -> set[str]:
    """The global variables that functions assign and that are not declared as a rank's."""
    tree, declared = ast.parse(source), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "keep_per_rank":
            declared |= {each.value for each in node.args if isinstance(each, ast.Constant)}
    assigned = {
        name for node in ast.walk(tree) if isinstance(node, ast.Global) for name in node.names
    }
    return assigned - declared


def test_a_global_variable_that_is_not_declared_is_found() -> None:
    """So the test below could fail."""
    source = "def f():\n    global a, b\n    a = b = 1\nkeep_per_rank(__name__, 'a')"
    assert undeclared(source) == {"b"}


def test_global_variables_of_code_in_ranks_are_declared() -> None:
    """Otherwise ranks that share a process would share them."""
    found = set()
    for file in sorted(PACKAGE.rglob("*.py")):
        name = file.relative_to(PACKAGE).as_posix()
        in_judge = name.startswith("judges") and "/instrument/" not in name
        if name.startswith(IN_RANKS) and not in_judge:
            found |= {f"{name} {each}" for each in undeclared(file.read_text(encoding="utf-8"))}
    assert found == OF_THE_PROCESS
