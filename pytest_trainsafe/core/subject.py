"""What a Finding is about, where that is no tensor."""

from __future__ import annotations

import msgspec


class ModuleSubject(msgspec.Struct, frozen=True, tag="module"):
    """A module of the model, by its path; "" is the model itself."""

    path: str

    def __str__(self) -> str:
        return self.path or "the root module"


class CallSubject(msgspec.Struct, frozen=True, tag="call", omit_defaults=True):
    """A call of an API such as "torch.optim.Adam.step", and the "file:line" of the call."""

    api: str
    at: str = ""

    def __str__(self) -> str:
        return f"{self.api} at {self.at}" if self.at else self.api


class StreamSubject(msgspec.Struct, frozen=True, tag="stream", omit_defaults=True):
    """A stream of random numbers: a generator of a rank, None for that of every rank."""

    generator: str
    rank: int | None = None

    def __str__(self) -> str:
        return self.generator if self.rank is None else f"{self.generator} of rank {self.rank}"


class RankSubject(msgspec.Struct, frozen=True, tag="rank"):
    """A rank of a Run."""

    rank: int

    def __str__(self) -> str:
        return f"rank {self.rank}"


class StepSubject(msgspec.Struct, frozen=True, tag="step"):
    """A step of the training."""

    step: int

    def __str__(self) -> str:
        return f"step {self.step}"


Subject = ModuleSubject | CallSubject | StreamSubject | RankSubject | StepSubject
