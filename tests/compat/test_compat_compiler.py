"""torch's compiler is imported only by programs that compile, which it then treats as before."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.end_to_end import inner_pytest

PRELUDE = """
import json, sys

import torch
from torch import nn

from pytest_trainsafe.compat import compiler

def imported():
    return "torch._dynamo" in sys.modules
"""

TRAINING = """
from torch.utils.checkpoint import checkpoint

def trained(name):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
    made = getattr(torch.optim, name)
    kept = [p for p in model.parameters() if name != "Muon" or p.ndim == 2]
    optimizer = made(kept, lr=0.01)
    for _ in range(3):
        x = torch.linspace(-1, 1, 8).view(2, 4).requires_grad_()
        checkpoint(model, x, use_reentrant=True).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    optimizer.load_state_dict(optimizer.state_dict())
    return [p.tolist() for p in model.parameters()]

NAMES = [
    name
    for name in sorted(torch.optim.__all__)
    if name not in ("Optimizer", "LBFGS", "SparseAdam", "lr_scheduler")
    if isinstance(getattr(torch.optim, name), type)
]
if sys.argv[1] == "postponed":
    compiler.postpone()
print(json.dumps({"weights": {name: trained(name) for name in NAMES}, "imported": imported()}))
"""

#: A step that is compiled, with a module's hook that must not be: what the compiler found in it.
COMPILED = """
if sys.argv[1] == "postponed":
    compiler.postpone()
else:
    import torch._dynamo

calls = []
model = nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

def hook(*_):
    calls.append(torch.compiler.is_compiling())

hooked = compiler.disabled(hook)
before = imported()
assert not isinstance(model, type(None))

def step(x):
    hooked()
    loss = model(x).sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss

x = torch.ones(3, 2)
step(x)
compiled = torch.compile(step, backend="eager")
compiled(x)
compiled(x)
from torch._dynamo.utils import counters

print(json.dumps({
    "before": before,
    "calls": calls,
    "breaks": sorted(reason.splitlines()[0] for reason in counters["graph_break"]),
    "graphs": counters["stats"]["unique_graphs"],
    "marked": "__dynamo_disable" in vars(torch.optim.Optimizer.zero_grad.__wrapped__),
}))
"""

ACTIONS = """
seen = []
compiler.when_imported(lambda: seen.append(imported()))
noted = []
constant = compiler.constant(lambda: noted.append(1))
first = list(seen)
import torch._dynamo.eval_frame
compiler.when_imported(lambda: seen.append("at once"))
print(json.dumps({
    "first": first, "seen": seen, "constant": constant._dynamo_marked_constant,
    "finders": [type(each).__module__ for each in sys.meta_path].count(compiler.__name__),
}))
"""


Ran = Callable[..., Any]


@pytest.fixture
def ran(tmp_path: Path) -> Ran:
    """Runs a script in a process that has imported torch, but not its compiler."""

    def run(script: str, how: str = "") -> Any:
        quiet = "import warnings; warnings.simplefilter('ignore')\n"
        done = inner_pytest.script(quiet + PRELUDE + script, [how], tmp_path)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    return run


def test_training_without_the_compiler_computes_the_same_bits(ran: Ran) -> None:
    postponed, plain = ran(TRAINING, "postponed"), ran(TRAINING, "plain")

    assert postponed["weights"] == plain["weights"]
    assert len(postponed["weights"]) >= 12  # the optimizers of the oldest supported torch
    assert (postponed["imported"], plain["imported"]) == (False, True)


def test_a_program_that_compiles_is_compiled_as_without_postponing(ran: Ran) -> None:
    postponed, plain = ran(COMPILED, "postponed"), ran(COMPILED, "plain")

    assert (postponed.pop("before"), plain.pop("before")) == (False, True)
    assert postponed == plain
    # Once as it is, and twice around the compiled parts: never inside of one.
    assert postponed["calls"] == [False, False, False]
    assert postponed["breaks"]


def test_actions_run_when_the_compiler_is_imported_or_at_once_after_that(ran: Ran) -> None:
    assert ran(ACTIONS) == {
        "first": [],
        "seen": [True, "at once"],
        "constant": True,
        "finders": 0,
    }


@pytest.mark.parametrize("module", ["launch.forkserver.server", "record.program"])
def test_what_every_rank_imports_does_not_import_the_compiler(ran: Ran, module: str) -> None:
    script = f"import pytest_trainsafe.{module}\nprint(json.dumps([imported()]))"

    assert ran(script) == [False]
