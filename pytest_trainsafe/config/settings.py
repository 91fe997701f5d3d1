"""The run's settings, as one frozen object.

Plain data: sessions and reports use it and never read pytest's options.  `table` has the option of
each setting, and `read` creates the object.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import pytest

from pytest_trainsafe.config.grammar import SweepWords

LAUNCHERS = ("auto", "warm", "torchrun", "threads")
DEVICES = ("auto", "cpu", "cuda")
NETWORKS = ("auto", "private", "host")
GITHUB = ("auto", "on", "off")
PLANS = ("json",)
Recording = Literal["sketch", "full"]
RECORDINGS: tuple[Recording, ...] = ("sketch", "full")


class Settings(NamedTuple):  # every start of pytest makes this class, so no dataclass
    """The settings of a run, from options, ini values and a test's marker.

    `sweep` has the words that choose axis values ("tp=1,2"); `sweep_from_ini` is true if they come
    from the ini file or a profile.  `cover` is the strength of the covering design that chooses
    among the Points, 0 for all Points.  `dtypes` names the dtypes to judge in; empty means
    automatic.  `timeout` is in seconds, per group of ranks.  `record` is one of RECORDINGS.  An
    empty `record_kinds` records every kind.  `keep_traces` is a directory, or "" to keep none.
    `report` is the directory for the page that shows the run, or "" to write none.
    `max_threads` is how many ranks the launcher `threads` runs in one process.  `slots` is how many
    ranks may train on this machine at once, 0 for one per core.  With
    `no_cache` every reference is run; `cache_size` limits the cache of references, in bytes.
    `cache_inputs` holds what references depend on: absolute patterns of files, and "$NAME" for
    environment variables.  `localize` is the number of seconds that each failing test may spend on
    finding the faulty code, 0 for none; `judges/compare/localize/budget.py` limits the total time
    of a process.  `annotate` is the directory that test ids are relative to, if missing annotations
    are to be written, else "".  `init` is the program for which a first test is written, "" for
    none.  `plan` is the format of the plan that is written instead of running tests, "" for none.
    `shard` is the number of this run's shard and the count of shards, None to run all tests;
    `from_plan` is the path of the plan that divides the tests into shards, "" to divide them by
    their number of ranks.  `github` says when the reports for GitHub Actions are written, one of
    GITHUB.  `rng` says whether ranks record their random draws in the RNG ledger.  `packs` names
    the packs of invariants that candidates must satisfy, `suite_packs` those of them that the whole
    run has and not this test's marker, of which nothing fails a test with `packs_report`, and
    `learn` the pack that this run learns, "" for none; `root` is pytest's root directory, whose
    folder `invariants` has the project's packs, and `started` the folder in which pytest was
    started.  `rerun` has the words of the command line, without the sweep, that a later run of one
    of its tests needs.  `replay` is None, or the folder of a trace whose Run is replayed from a
    checkpoint, with the step that failed (None to find it). `debug` is the number of the rank that
    gets the terminal at a `breakpoint()`, None for none.  `profile` is the name of the profile that
    is used, "" for none; its values are in the other fields.  `adapters`, `judges` and `relations`
    are the import paths of the project's own framework adapters, judges and relations, and
    `launchers` the names of its own launchers, each with the import path of its factory.  `rungs`
    are the names of its own rungs.
    """

    sweep: SweepWords = ()
    sweep_from_ini: bool = False
    cover: int = 0
    max_world_size: int = 8
    dtypes: tuple[str, ...] = ()
    launcher: str = "auto"
    max_threads: int = 64
    device: str = "auto"
    network: str = "auto"
    timeout: float = 300.0
    seed: int = 0
    accept: tuple[str, ...] = ()
    record: Recording = "full"
    record_kinds: tuple[str, ...] = ()
    record_modules: tuple[str, ...] = ("*",)
    keep_traces: str = ""
    report: str = ""
    slots: int = 0
    no_cache: bool = False
    cache_size: int = 2 * 10**9
    cache_inputs: tuple[str, ...] = ()
    localize: float = 60.0
    annotate: str = ""
    profile: str = ""
    rng: bool = True
    packs: tuple[str, ...] = ()
    suite_packs: tuple[str, ...] = ()
    packs_report: bool = False
    learn: str = ""
    root: str = ""
    started: str = ""
    rerun: str = ""
    init: str = ""
    plan: str = ""
    shard: tuple[int, int] | None = None
    from_plan: str = ""
    github: str = "auto"
    replay: tuple[str, int | None] | None = None
    debug: int | None = None
    adapters: tuple[str, ...] = ()
    judges: tuple[str, ...] = ()
    relations: tuple[str, ...] = ()
    launchers: tuple[tuple[str, str], ...] = ()
    rungs: tuple[str, ...] = ()


SETTINGS = pytest.StashKey[Settings]()

#: The key under which the controller of pytest-xdist sends a worker the axis words.
WORKER_SWEEP = "trainsafe_sweep"
