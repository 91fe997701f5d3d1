"""The rung `exact`, whose numbers are not rounded, and the rung `real`, which decides for it.

Exact numbers have no order.  So the program runs on real numbers first, by the same formulas, and
every comparison, clamp and choice that this Run takes is taken by the exact Run at the same place.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from pytest_trainsafe.arithmetic import Doubles, ExactMode, Numbers, Residues
from pytest_trainsafe.compat.compiler import when_imported
from pytest_trainsafe.core.rungs.rank_run import RankRun
from pytest_trainsafe.core.rungs.rung import Enter, Rung
from pytest_trainsafe.core.rungs.table import WIDEST, rung_named
from pytest_trainsafe.judges.exact.events import OperatorsMet, decisions
from pytest_trainsafe.trace.reader import Trace


@dataclass(frozen=True)
class ExactRung(Rung):
    """Residues modulo two primes, packed into float64 tensors."""

    @contextmanager
    def around(self, run: RankRun) -> Iterator[Enter]:
        assert run.followed is not None, "an exact Run follows one on real numbers"
        taken = decisions.read(Trace.open(run.followed, only=run.rank), run.rank)
        replay = taken.replay()
        numbers = Residues(run.seed * 1009 + run.sample, replay)
        with _computing(numbers) as mode:
            yield mode.enter
        replay.finish()
        run.add(
            OperatorsMet(
                dict(mode.met),
                numbers.hashes.count,
                numbers.multiplications,
                len(taken.taken),
                decisions.digest(taken),
                mode.integers.hexdigest(),
            )
        )


@dataclass(frozen=True)
class RealRung(Rung):
    """float64, computed by the same semantics, with every decision recorded."""

    @property
    def encloses(self) -> bool:
        return True

    @contextmanager
    def around(self, run: RankRun) -> Iterator[Enter]:
        numbers = Doubles()
        with _computing(numbers) as mode:
            yield mode.enter
        run.add(decisions.write(run.trace / f"rank{run.rank}", numbers.decisions))


@contextmanager
def _computing(numbers: Numbers) -> Iterator[ExactMode]:
    """Computes the program's operators on numbers; what torch.compile compiles runs as it is."""
    when_imported(lambda: torch.compiler.set_stance("force_eager"))
    with ExactMode(numbers) as mode:
        yield mode


_WIDE = rung_named(WIDEST)

EXACT = ExactRung(
    "exact",
    "float64",
    follows="real",
    judge="exact",
    arithmetic_path="pytest_trainsafe.judges.exact.numbers:EXACT",
)

REAL = RealRung(
    "real",
    "float64",
    epsilon=_WIDE.epsilon,
    safety=_WIDE.safety,
    floor=_WIDE.floor,
    resampled=_WIDE.resampled,
)
