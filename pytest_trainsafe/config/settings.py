"""The run's settings, as one frozen object.

Plain data: sessions and reports use it and never read pytest's options.  `table` has the option of
each setting, and `read` creates the object.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import pytest

from pytest_trainsafe.config.grammar import SweepWords

LAUNCHERS = ("auto", "warm", "torchrun")
DEVICES = ("auto", "cpu", "cuda")
NETWORKS = ("auto", "private", "host")
GITHUB = ("auto", "on", "off")
PLANS = ("json",)
Recording = Literal["sketch", "full"]
RECORDINGS: tuple[Recording, ...] = ("sketch", "full")


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a run, from options, ini values and a test's marker.

    `sweep` holds the axis words as written, from the command line or else from the ini file
    (`sweep_from_ini`).  `cover` is the strength of the covering design that chooses among the
    Points, 0 for all Points.  `dtypes` names the rungs of the precision ladder; empty means
    automatic.  `timeout` is in seconds, per rank group.  `record` is one of RECORDINGS.  An empty
    `record_kinds` records every kind.  `keep_traces` is a directory, or "" to keep none.
    `slots` is how many ranks may train on this machine at once, 0 for one per core.  `no_cache`
    runs every reference; `cache_size` bounds the cached ones, in bytes.  `cache_inputs` holds
    absolute patterns of files, and "$NAME" for environment variables, that references depend on.
    `localize` is the number of seconds that each failing test may spend on finding the faulty
    code, 0 for none; `judge/localize/budget.py` bounds the time of a process.
    `annotate` is the root directory of node ids, below which missing annotations are written;
    "" if they are not written.
    `plan` is the format of the plan that is written instead of running tests, "" for none.
    `shard` is the number of this run's shard and the count of shards, None to run all tests;
    `from_plan` is the plan that says how to divide, "" to divide by the number of ranks.
    `github` says when the reports for GitHub Actions are written, one of GITHUB.
    `rng` says whether ranks keep the RNG ledger.
    `packs` names the packs of invariants that candidates must keep, and `learn` the pack that this
    run learns, "" for none; `root` is the root directory, which has the project's packs in
    `invariants`.
    `replay` is the folder of a trace whose Run continues from a checkpoint, and the step that
    failed, None to find it; None replays nothing.
    `profile` is the name of the profile in force, "" for none; its values are in the other fields.
    `adapters`, `judges` and `relations` are the import paths of the project's own framework
    adapters, judges and relations, and `launchers` the names of its own launchers, each with the
    import path of its factory.
    """

    sweep: SweepWords = ()
    sweep_from_ini: bool = False
    cover: int = 0
    max_world_size: int = 8
    dtypes: tuple[str, ...] = ()
    launcher: str = "auto"
    device: str = "auto"
    network: str = "auto"
    timeout: float = 300.0
    seed: int = 0
    accept: tuple[str, ...] = ()
    record: Recording = "full"
    record_kinds: tuple[str, ...] = ()
    record_modules: tuple[str, ...] = ("*",)
    keep_traces: str = ""
    slots: int = 0
    no_cache: bool = False
    cache_size: int = 2 * 10**9
    cache_inputs: tuple[str, ...] = ()
    localize: float = 60.0
    annotate: str = ""
    profile: str = ""
    rng: bool = True
    packs: tuple[str, ...] = ()
    learn: str = ""
    root: str = ""
    plan: str = ""
    shard: tuple[int, int] | None = None
    from_plan: str = ""
    github: str = "auto"
    replay: tuple[str, int | None] | None = None
    adapters: tuple[str, ...] = ()
    judges: tuple[str, ...] = ()
    relations: tuple[str, ...] = ()
    launchers: tuple[tuple[str, str], ...] = ()


SETTINGS = pytest.StashKey[Settings]()

#: The key under which an xdist controller passes its parsed axis words to a worker.
WORKER_SWEEP = "trainsafe_sweep"
