"""The table of options: each row defines everything about one setting.

Each row determines the command line option, its ini key, its name in a profile, the setting of the
marker if there is one, the text in pytest's header, and a row of the table in docs/usage.md. Help
texts start with a capital and end without a full stop.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

from pytest_trainsafe.config import values
from pytest_trainsafe.config.settings import (
    DEVICES,
    GITHUB,
    LAUNCHERS,
    NETWORKS,
    PLANS,
    RECORDINGS,
    Settings,
)
from pytest_trainsafe.core.usage import listing

#: The word that an "optional" option uses if it is given without one.
DEFAULT_WORDS = {"learn": "learned"}

#: The ini key of a project's own profiles.
PROFILES_KEY = "trainsafe_profiles"

Parser = Callable[[str, str], Any]


class Option(NamedTuple):
    """One setting of a run.

    `name` is the option's name after `--trainsafe-`, and `field` the name in Settings. The kind
    "value" takes one word, which `parse` reads; "optional" takes a word or none (without a word it
    uses that of DEFAULT_WORDS); "flag" takes none; "words" takes the words of a sweep, such as
    "tp=1,2". `metavar` stands for the value in the help, and `help` describes the option. `default`
    is the text for the default value; if it is "", the text is made from the value in Settings.
    `marker` is None if the pytest marker has no keyword `field`; otherwise it is a function that
    checks the value of this keyword. `text` formats a value. `more` is Markdown that the
    documentation adds to the help.
    """

    name: str
    field: str
    metavar: str
    help: str
    parse: Parser | None = None
    kind: Literal["value", "optional", "flag", "words"] = "value"
    default: str = ""
    marker: Callable[[object], object] | None = None
    text: Callable[[Any], str] | None = None
    more: str = ""

    @property
    def key(self) -> str:
        """The ini key, which is also the name under which pytest stores the option."""
        return "trainsafe_" + self.name.replace("-", "_")

    @property
    def flag(self) -> str:
        """The option as written on the command line."""
        return f"--trainsafe-{self.name}"

    @property
    def takes_list(self) -> bool:
        """Whether the value is a list of words, which a comma separates on the command line."""
        return isinstance(getattr(_DEFAULT, self.field), tuple) and self.text is None

    def shown(self, value: Any) -> str:
        """The text for a value: `120`, `float64,float32`; "" for an empty value."""
        if self.text is not None:
            return self.text(value)
        if isinstance(value, tuple):
            return ",".join(value)
        return f"{value:g}" if isinstance(value, float) else str(value)

    @property
    def default_words(self) -> str:
        """The text for the default value."""
        return self.default or self.shown(getattr(_DEFAULT, self.field))

    @property
    def full_help(self) -> str:
        """The help, followed by the default value in parentheses if there is one."""
        return f"{self.help} (default {self.default_words})" if self.default_words else self.help


_DEFAULT = Settings()


def _sweep(words: tuple[tuple[str, tuple[str, ...]], ...]) -> str:
    return " ".join(f"{axis}={','.join(each)}" for axis, each in words)


def _size(count: int) -> str:
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("KB", 10**3)):
        if count >= size:
            return f"{count / size:g}{unit}"
    return str(count)


OPTIONS = (
    Option(
        "sweep",
        "sweep",
        "AXIS=VALUES",
        "Values for the axes that tests declare, such as tp=1,2 cp=1,2: one or more words, before "
        "or after paths",
        kind="words",
        text=_sweep,
        more="repeatable",
    ),
    Option(
        "cover",
        "cover",
        "STRENGTH",
        "Run few points that cover every valid pair (triple) of axis values: pairwise, 3-wise, or "
        "off",
        values.parse_cover,
        text=values.cover_word,
        more="[covering designs](fuzzing.md#covering-designs)",
    ),
    Option(
        "max-world-size",
        "max_world_size",
        "N",
        "Skip points of more than N ranks",
        values.parse_count,
    ),
    Option(
        "dtype",
        "dtypes",
        "DTYPES",
        # Spelled out, because every start of pytest makes this text, and few need the table.
        "Dtypes to judge in, in order: auto or some of float64, float32, bfloat16, float16",
        values.parse_dtypes,
        default="auto",
        more="`auto` is float64, float32, then the Point's dtype",
    ),
    Option(
        "launcher",
        "launcher",
        "NAME",
        f"How rank groups are started: {listing(LAUNCHERS)}, or a launcher that a hook adds",
        values.choice(LAUNCHERS),
        more="`warm` forks ranks, `torchrun` starts them anew, `threads` runs them "
        "[in turn in one process](running.md#ranks-in-one-process); `auto` is warm for functions, "
        "torchrun for scripts. A [launcher of your own](extending.md#a-launcher-of-your-own) has "
        "its own name",
    ),
    Option(
        "max-threads",
        "max_threads",
        "N",
        "Most ranks that the launcher threads runs in one process",
        values.parse_count,
    ),
    Option(
        "device",
        "device",
        "DEVICE",
        f"Where ranks train: {listing(DEVICES)}",
        values.choice(DEVICES),
        more="`auto` is a GPU for every rank where there are enough",
    ),
    Option(
        "network",
        "network",
        "NETWORK",
        f"Network of the ranks: {listing(NETWORKS)}",
        values.parse_network,
        more="`private` connects [only the ranks of a group](running.md#the-network-of-ranks), "
        "`host` is the network of the machine, and `auto` is `private` where the kernel allows it",
    ),
    Option(
        "timeout",
        "timeout",
        "SECONDS",
        "Time limit of a group of ranks",
        values.parse_seconds,
        marker=values.check_timeout,
    ),
    Option(
        "seed",
        "seed",
        "SEED",
        "Seed of every run",
        values.parse_seed,
        marker=values.check_seed,
        more="of parameters and data",
    ),
    Option(
        "accept",
        "accept",
        "CHECKS",
        "Checks that may be inconclusive without failing a test",
        values.parse_checks,
        marker=values.check_accept,
        more="[names](#verdicts)",
    ),
    Option(
        "record",
        "record",
        "WHAT",
        f"What to keep of tensors: {listing(RECORDINGS)}",
        values.parse_recording,
        more="[sketches](tolerances.md#sketches) take less space",
    ),
    Option(
        "record-kinds",
        "record_kinds",
        "KINDS",
        "Kinds of tensors to record, such as activation,main_grad",
        values.parse_kinds,
        default="all",
        more="`update` is derived from `param` and `master_param`",
    ),
    Option(
        "record-modules",
        "record_modules",
        "PATTERNS",
        "Names of modules whose activations are recorded",
        values.parse_list,
    ),
    Option(
        "rng",
        "rng",
        "STATE",
        "Whether ranks record which random numbers they draw: on or off",
        values.parse_switch,
        text=lambda on: "on" if on else "off",
        more="the [RNG ledger](replay.md)",
    ),
    Option(
        "packs",
        "packs",
        "PACKS",
        "Packs of invariants that candidates must keep: names of packs, or .pack files",
        values.parse_packs,
        default="none",
        marker=values.check_packs,
        more="[learned invariants](learn.md)",
    ),
    Option(
        "packs-report",
        "packs_report",
        "",
        "Only report what the packs of --trainsafe-packs say, at the end of the run; fail no test",
        kind="flag",
        default="off",
        more="[how](learn.md#a-whole-suite)",
    ),
    Option(
        "learn",
        "learn",
        "NAME",
        "Learn invariants from the tests marked healthy, and write invariants/NAME.pack",
        values.parse_pack_name,
        kind="optional",
        default="off",
        more="without `=NAME` the name is `learned`; [how](learn.md#learning-a-pack)",
    ),
    Option(
        "replay",
        "replay",
        "TRACE[@STEP]",
        "Run the test that recorded a trace again from the checkpoint before the step that failed",
        values.parse_replay,
        text=lambda asked: asked and f"{asked[0]}{'' if asked[1] is None else f'@{asked[1]}'}",
        more="[how](replay.md#replaying-a-failing-test)",
    ),
    Option(
        "debug",
        "debug",
        "RANK",
        "Give this rank the terminal at a breakpoint(), while the others wait",
        values.parse_rank,
        text=lambda rank: "" if rank is None else str(rank),
        more="[how](running.md#print-and-debug-inside-a-rank)",
    ),
    Option(
        "localize",
        "localize",
        "SECONDS",
        "Time limit per test to find the faulty code, or off",
        values.parse_localize,
        text=lambda seconds: f"{seconds:g}" if seconds else "off",
        more="all failures of a process take at most ten times as long",
    ),
    Option(
        "keep-traces",
        "keep_traces",
        "DIR",
        "Keep every trace below this directory",
        values.parse_folder,
        more="with every rank's output",
    ),
    Option(
        "report",
        "report",
        "DIR",
        "Write a page that shows the run, to look at in a browser, into this directory",
        values.parse_folder,
        more="[the page](report.md)",
    ),
    Option(
        "slots",
        "slots",
        "N",
        "Ranks that may train on this machine at once",
        values.parse_count,
        default="one per core, minimum 2",
    ),
    Option(
        "annotate",
        "annotate",
        "",
        "Write missing annotations of tests: into the file the program read, or a new one",
        kind="flag",
        default="off",
        more="[how](layouts.md#annotations-are-proposed)",
    ),
    Option(
        "no-cache",
        "no_cache",
        "",
        "Run every reference instead of reusing those of earlier runs",
        kind="flag",
        default="off",
        more="[references](running.md#references-are-run-once)",
    ),
    Option(
        "cache-size",
        "cache_size",
        "SIZE",
        "Disk space for references of earlier runs",
        values.parse_size,
        text=_size,
    ),
    Option(
        "cache-inputs",
        "cache_inputs",
        "PATTERNS",
        "Files and $VARIABLES that references depend on, besides those that programs are seen to "
        "read: a reference is run again when one changes",
        values.parse_list,
        more="patterns are relative to the root directory: `data/*.bin,$LAYERS`",
    ),
    Option(
        "init",
        "init",
        "PROGRAM",
        "Train package.module:function or a script once, list what it lacks, write a first test "
        "beside it, and run no tests",
        values.parse_program,
        more="[the first test](#the-first-test)",
    ),
    Option(
        "plan",
        "plan",
        "FORMAT",
        f"Write the points that would run to standard output, and run nothing: {listing(PLANS)}",
        values.choice(PLANS),
        more="[plans and shards](ci.md#plans-and-shards)",
    ),
    Option(
        "shard",
        "shard",
        "I/N",
        "Run the I-th of N parts of the points",
        values.parse_shard,
        text=lambda shard: "/".join(map(str, shard)) if shard else "",
        more="[plans and shards](ci.md#plans-and-shards)",
    ),
    Option(
        "from-plan",
        "from_plan",
        "FILE",
        "Divide into shards by this plan, which --trainsafe-plan json has written",
        values.parse_file,
    ),
    Option(
        "github",
        "github",
        "WHEN",
        f"Annotations and a job summary for GitHub Actions: {listing(GITHUB)}",
        values.choice(GITHUB),
        more="`auto` writes them [in a job of GitHub Actions](ci.md)",
    ),
    Option(
        "profile",
        "profile",
        "NAME",
        "Settings under a name: dev, ci, nightly, or one of the ini key trainsafe_profiles",
        lambda source, text: text,
        more="[profiles](#profiles)",
    ),
)

BY_NAME = {option.name: option for option in OPTIONS}


def documentation() -> str:
    """The table of options in docs/usage.md."""
    rows = ["| option | in the marker | default | meaning |", "|---|---|---|---|"]
    for option in OPTIONS:
        typed = f"{option.flag} {option.metavar}".rstrip()
        marker = f"`{option.field}`" if option.marker is not None else ""
        default = option.default_words
        meaning = "; ".join(filter(None, (option.help, option.more)))
        cells = (f"`{typed}`", marker, f"`{default}`" if default else "", meaning)
        rows.append("| " + " | ".join(cells) + " |")
    return "\n".join(rows).replace("|  |", "| |").replace("|  |", "| |") + "\n"
