"""The run's settings, read from options and ini values, checked, as one frozen object.

Plain data: sessions and reports use it and never read pytest's options.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import pytest

from pytest_trainsafe.config.checks import require_known
from pytest_trainsafe.config.grammar import OPTION, SweepWords, parse_words
from pytest_trainsafe.core.axes import DTYPES, MOST_SECONDS
from pytest_trainsafe.core.usage import SweepError, excerpt, listing, nearest, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    T = TypeVar("T")

LAUNCHERS = ("auto", "warm", "torchrun")
DEVICES = ("auto", "cpu", "cuda")
NETWORKS = ("auto", "private", "host")
Recording = Literal["sketch", "full"]
RECORDINGS: tuple[Recording, ...] = ("sketch", "full")


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a run, from options, ini values and a test's marker.

    `sweep` holds the axis words as written, from the command line or else from the ini file
    (`sweep_from_ini`).  `dtypes` names the rungs of the precision ladder; empty means automatic.
    `timeout` is in seconds, per rank group.  `record` is one of RECORDINGS.  An empty
    `record_kinds` records every kind.  `keep_traces` is a directory, or "" to keep none.
    `slots` is how many ranks may train on this machine at once, 0 for one per core.  `no_cache`
    runs every reference; `cache_size` bounds the cached ones, in bytes.  `cache_inputs` holds
    absolute patterns of files, and "$NAME" for environment variables, that references depend on.
    `localize` is the number of seconds that each failing test may spend on finding the faulty
    code, 0 for none; `judge/localize/budget.py` bounds the time of a process.
    `annotate` is the root directory of node ids, below which missing annotations are written;
    "" if they are not written.
    `adapters` and `judges` are the import paths of the project's own framework adapters and judges.
    """

    sweep: SweepWords = ()
    sweep_from_ini: bool = False
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
    adapters: tuple[str, ...] = ()
    judges: tuple[str, ...] = ()


#: Maximum number of ranks of a Point, and of ranks that run at once; catches typing errors.
MOST_RANKS = 100_000

SETTINGS = pytest.StashKey[Settings]()

#: The key under which an xdist controller passes its parsed axis words to a worker.
WORKER_SWEEP = "trainsafe_sweep"


def read_settings(config: pytest.Config) -> Settings:
    """Reads and checks the settings of this run; the command line wins over the ini file.

    Raises UsageError that names the option or ini key and lists what it takes.
    """
    words, from_ini = sweep_words(config)
    default = Settings()
    return Settings(
        sweep=_usage(parse_words, words, "trainsafe_sweep (ini)" if from_ini else OPTION),
        sweep_from_ini=from_ini,
        max_world_size=_value(config, "max-world-size", _positive_int, default.max_world_size),
        dtypes=_value(config, "dtype", _dtypes, default.dtypes),
        launcher=_value(config, "launcher", _choice(LAUNCHERS), default.launcher),
        device=_value(config, "device", _choice(DEVICES), default.device),
        network=_value(config, "network", _network, default.network),
        timeout=_value(config, "timeout", _seconds, default.timeout),
        seed=_value(config, "seed", _seed, default.seed),
        accept=_value(config, "accept", _names, default.accept),
        record=_value(config, "record", _recording, default.record),
        record_kinds=_value(config, "record-kinds", _kinds, default.record_kinds),
        record_modules=_value(config, "record-modules", _listed, default.record_modules),
        localize=_value(config, "localize", _localize, default.localize),
        keep_traces=_value(config, "keep-traces", _folder, default.keep_traces),
        slots=_value(config, "slots", _positive_int, default.slots),
        no_cache=_flag(config, "no-cache"),
        annotate=str(config.rootpath) if _flag(config, "annotate") else "",
        adapters=_import_paths("adapters", config.hook.pytest_trainsafe_adapters(config=config)),
        judges=_import_paths("judges", config.hook.pytest_trainsafe_judges(config=config)),
        cache_size=_value(config, "cache-size", _bytes, default.cache_size),
        cache_inputs=tuple(
            entry if entry.startswith("$") else str(config.rootpath / entry)
            for entry in _value(config, "cache-inputs", _listed, default.cache_inputs)
        ),
    )


def _import_paths(what: str, given: Sequence[Any]) -> tuple[str, ...]:
    """What the implementations of a hook gave, each an import path or several."""
    paths = [path for each in given for path in ([each] if isinstance(each, str) else each)]
    for path in paths:
        module, colon, name = str(path).partition(":")
        if not (colon and name.isidentifier() and all(p.isidentifier() for p in module.split("."))):
            raise pytest.UsageError(
                f"pytest_trainsafe_{what} gave {path!r}; it takes import paths of classes, such "
                'as "our_tests.adapter:OurFramework"'
            )
    return tuple(paths)


def require_encodable_folders(config: pytest.Config) -> None:
    """Raises UsageError if a path that is sent to ranks is not valid UTF-8.

    Called only if there are marked tests: other tests may run in any folder.
    """
    base = config.option.basetemp
    for what, path in (
        ("the working directory", os.getcwd()),
        ("--basetemp", os.path.abspath(base)) if base else ("TMPDIR", tempfile.gettempdir()),
    ):
        try:
            path.encode()
        except UnicodeEncodeError:
            raise pytest.UsageError(
                f"{what} is {os.fsencode(path)!r}, which is not UTF-8; the paths of ranks' "
                "folders are sent in UTF-8, so choose a folder with a UTF-8 name"
            ) from None


def sweep_words(config: pytest.Config) -> tuple[list[str], bool]:
    """The axis words in force, and whether they came from the ini file.

    A worker of pytest-xdist parses its command line on top of the words it was passed, so it
    uses its controller's words instead: each word then counts once, and all points agree.
    """
    worker_input = getattr(config, "workerinput", {})
    if WORKER_SWEEP in worker_input:
        handed = worker_input[WORKER_SWEEP]
        return list(handed["words"]), bool(handed["from_ini"])
    given = config.getoption("trainsafe_sweep")
    if given:
        return list(given), False
    words = _ini(config, "trainsafe_sweep", "words such as tp=1,2 cp=1,2")
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise pytest.UsageError(
            f"trainsafe_sweep (ini) takes words such as tp=1,2 cp=1,2, as text, not {shown(words)}"
        )
    return list(words), bool(words)


def _ini(config: pytest.Config, key: str, allowed: str) -> object:
    """A value of the ini file; raises UsageError if pytest cannot read it as the key's type."""
    try:
        value: object = config.getini(key)
    except (TypeError, ValueError, pytest.UsageError) as error:  # by pytest's version
        raise pytest.UsageError(
            f"{key} (ini) takes {allowed}; it cannot be read: {excerpt(str(error), 300)}"
        ) from error
    return value


def _flag(config: pytest.Config, name: str) -> bool:
    key = "trainsafe_" + name.replace("-", "_")
    return bool(config.getoption(key) or _ini(config, key, "true or false"))


def _value(config: pytest.Config, name: str, parse: Callable[[str, str], T], default: T) -> T:
    key = "trainsafe_" + name.replace("-", "_")
    text = config.getoption(key)
    source = f"--trainsafe-{name}"
    if text is None:
        text, source = _ini(config, key, "one line of text"), f"{key} (ini)"
        if text in ("", None):
            return default
        if not isinstance(text, str):
            raise pytest.UsageError(f"{source} takes one line of text, not {shown(text)}")
    if "\0" in text:
        raise pytest.UsageError(f"{source} takes one line of text, without NUL, not {shown(text)}")
    try:
        return parse(source, text.strip())
    except SweepError as error:
        raise pytest.UsageError(str(error)) from error


def _usage(parse: Callable[[Iterable[str], str], T], words: list[str], source: str) -> T:
    try:
        return parse(words, source)
    except SweepError as error:
        raise pytest.UsageError(str(error)) from error


def _positive_int(source: str, text: str) -> int:
    if not re.fullmatch(r"0*[1-9][0-9]*", text):
        raise SweepError(f"{source} takes an integer >= 1, not {shown(text)}")
    if len(text) > 10 or int(text) > MOST_RANKS:
        raise SweepError(f"{source} takes an integer of at most {MOST_RANKS}, not {shown(text)}")
    return int(text)


def _seed(source: str, text: str) -> int:
    # torch takes larger seeds, numpy does not.
    if not re.fullmatch(r"[0-9]{1,10}", text) or int(text) >= 2**32:
        raise SweepError(f"{source} takes an integer from 0 to 2**32 - 1, not {shown(text)}")
    return int(text)


def _seconds(source: str, text: str) -> float:
    # float() also accepts "nan", "1_0" and the digits of every script.
    if not re.fullmatch(r"[0-9.]{1,30}(e[+-]?[0-9]{1,3})?", text.lower()):
        raise SweepError(f"{source} takes a positive number of seconds, not {shown(text)}")
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0  # two points, or no digit
    if not seconds > 0:
        raise SweepError(f"{source} takes a positive number of seconds, not {shown(text)}")
    if seconds > MOST_SECONDS:
        raise SweepError(f"{source} takes at most {MOST_SECONDS} seconds, not {shown(text)}")
    return seconds


def _localize(source: str, text: str) -> float:
    if text == "off" or re.fullmatch(r"0{1,30}(\.0{0,30})?", text):
        return 0.0
    try:
        return _seconds(source, text)
    except SweepError:
        raise SweepError(f"{source} takes a number of seconds, or off, not {shown(text)}") from None


def _folder(source: str, text: str) -> str:
    if any(len(os.fsencode(part)) > 255 for part in text.split(os.sep)) or len(text) > 3000:
        raise SweepError(f"{source} takes the path of a folder, and {shown(text)} is too long")
    if os.path.exists(text) and not os.path.isdir(text):
        raise SweepError(f"{source} takes the path of a folder, and {shown(text)} is not a folder")
    return text


def _bytes(source: str, text: str) -> int:
    units = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
    found = re.fullmatch(r"([0-9]{1,15}(?:\.[0-9]{1,15})?) ?([KMGT]B|)", text.upper())
    if found is None:
        raise SweepError(f"{source} takes a size such as 500MB or 2GB, not {shown(text)}")
    return int(float(found[1]) * units[found[2]])


def _one_of(source: str, text: str, choices: tuple[str, ...]) -> str:
    if text not in choices:
        raise SweepError(
            f"{source} takes one of {listing(choices)}, not {shown(text)}{nearest(text, choices)}"
        )
    return text


def _choice(choices: tuple[str, ...]) -> Callable[[str, str], str]:
    return lambda source, text: _one_of(source, text, choices)


def _network(source: str, text: str) -> str:
    if _one_of(source, text, NETWORKS) == "private":
        from pytest_trainsafe.launch.resources.namespace import why_not

        why = why_not()
        if why:
            raise SweepError(
                f"{source} is private, and this machine does not allow private networks ({why}); "
                "use host, or auto, which falls back to the machine's network"
            )
    return text


def _recording(source: str, text: str) -> Recording:
    return "sketch" if _one_of(source, text, RECORDINGS) == "sketch" else "full"


def _listed(source: str, text: str) -> tuple[str, ...]:
    words = tuple(word.strip() for word in text.split(","))
    if "" in words:
        raise SweepError(
            f"{source} takes a comma-separated list, and {shown(text)} has an empty entry"
        )
    if len(set(words)) < len(words):
        raise SweepError(f"{source} lists an entry twice: {excerpt(text)}")
    return words


def _dtypes(source: str, text: str) -> tuple[str, ...]:
    if text == "auto":
        return ()
    return tuple(_one_of(source, word, DTYPES) for word in _listed(source, text))


def _kinds(source: str, text: str) -> tuple[str, ...]:
    from typing import get_args

    from pytest_trainsafe.core.tensor_id import Kind  # slow to import, and rarely needed

    words = _listed(source, text)
    if "update" in words:
        raise SweepError(
            f"{source} takes kinds that are recorded, and update is not: an update is the change "
            "of a parameter in a step. Use param and, if there are master copies, master_param"
        )
    recorded = tuple(kind for kind in get_args(Kind) if kind != "update")
    return tuple(_one_of(source, word, recorded) for word in words)


def _names(source: str, text: str) -> tuple[str, ...]:
    return require_known(_listed(source, text), source)
