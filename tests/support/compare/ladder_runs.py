"""A fake of the session's Traces, whose candidates are traces of the bench."""

from __future__ import annotations

from types import SimpleNamespace

from pytest_trainsafe.config.settings import Settings
from pytest_trainsafe.core.point import Point
from pytest_trainsafe.sweep.point_summary import PointSummary
from pytest_trainsafe.sweep.program import Program
from pytest_trainsafe.trace.reader import Trace
from tests.support.compare.traces import Bench

POINT = Point.of(tp=2, dp=2)


class Runs:
    """A fake of the session's Traces: returns traces of the bench, and records the requests."""

    def __init__(self, bench: Bench, candidates: dict[str, Trace], accept: tuple[str, ...]) -> None:
        self.bench = bench
        self.candidates = candidates
        self.summary: PointSummary = {"point": "", "verdict": "pass"}
        self.asked: list[str] = []
        self.seconds = {"launch": 1.23456, "train": 2.0}
        self.case = SimpleNamespace(
            rungs=tuple(candidates),
            point=POINT,
            program=Program("model:train"),
            nodeid="test_model.py::test_model[tp2-dp2]",
            settings=Settings(accept=accept, dtypes=tuple(candidates), localize=0),
        )
        self.runs = SimpleNamespace(
            scheduler=self, notes={}, reused={}, look_ahead=lambda: self.asked.append("ahead")
        )

    def prefetch(self, dtype: str, *, noise: bool = True) -> None:
        pass

    def stop_if_hung(self, dtypes: tuple[str, ...]) -> None:
        pass

    def foreseen(self) -> bool:
        """False, as if Runs might be requested that are not known yet."""
        return False

    def decided(self, dtype: str) -> None:
        """The bench's models make no decisions."""

    def replaying(self, decided: None) -> Runs:
        return self

    def measured_by(self, trace: Trace) -> Runs:
        return self

    def at(self, dtype: str) -> Trace:
        self.asked.append(dtype)
        return self.candidates[dtype] if self.candidates else self.bench.measures(dtype)[0]

    def perturbed(self, dtype: str, sample: int = 0) -> Trace:
        return self.bench.measures(dtype)[1]

    def prefetch_perturbed(self, dtype: str, samples: range) -> None:
        pass

    def rounding(self, dtype: str) -> str:
        return dtype

    def cast(self, dtype: str) -> str:
        """The bench's models cast nothing."""
        return ""
