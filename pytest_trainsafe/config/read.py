"""Reads the run's Settings from the command line, then the profile, then the ini file.

The first of these that has a value for a setting determines it.

Called by the plugin when pytest is configured. Settings in a test's marker take precedence over all
of these; they are read with the marker.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping

import pytest

from pytest_trainsafe.config.again import words_again
from pytest_trainsafe.config.checks import set_judges
from pytest_trainsafe.config.extensions import import_paths, read_launchers, read_rungs
from pytest_trainsafe.config.grammar import OPTION, parse_words, split_quoted
from pytest_trainsafe.config.settings import LAUNCHERS, WORKER_SWEEP, Settings
from pytest_trainsafe.config.table import BY_NAME, OPTIONS, PROFILES_KEY, Option
from pytest_trainsafe.config.values import choice
from pytest_trainsafe.core.usage import excerpt, shown
from pytest_trainsafe.errors import DeclarationError, SettingError

#: The profile that is used: its name, "" for none, and its values as text.
_Profile = tuple[str, Mapping[str, str]]

_NO_PROFILE: _Profile = "", {}

#: The options that take "on" or "off", for which TOML has true and false.
_SWITCHES = ("cover", "github", "localize", "rng")


def read_settings(config: pytest.Config) -> Settings:
    """The settings of this run, each value checked.

    Raises pytest.UsageError, which names the option, the profile or the ini key, and lists what
    it takes.
    """
    try:
        return _read(config)
    except DeclarationError as error:
        raise pytest.UsageError(str(error)) from error


def _read(config: pytest.Config) -> Settings:
    profile = _profile(config)
    words, source = _sweep(config, profile)
    launchers = read_launchers(config)
    if rungs := read_rungs(config):  # before settings that name one are parsed
        from pytest_trainsafe.core.rungs.table import add_rungs

        add_rungs(dict(rungs))
    judges = import_paths("judges", config.hook.pytest_trainsafe_judges(config=config))
    set_judges(judges)
    found: dict[str, object] = {
        "sweep": parse_words(words, source),
        "sweep_from_ini": source != OPTION,
        "profile": profile[0],
        "root": str(config.rootpath),
        "started": str(config.invocation_params.dir),
        "rerun": words_again(config),
        "adapters": import_paths("adapters", config.hook.pytest_trainsafe_adapters(config=config)),
        "judges": judges,
        "relations": import_paths(
            "relations", config.hook.pytest_trainsafe_relations(config=config)
        ),
        "launchers": launchers,
        "rungs": tuple(name for name, _ in rungs),
    }
    for option in OPTIONS:
        given = _given(config, option, profile) if option.field not in found else None
        if given is None:
            continue
        text, source = given
        parse = option.parse
        if option.name == "launcher":
            parse = choice((*LAUNCHERS, *(name for name, _ in launchers)))
        found[option.field] = True if parse is None else parse(source, text)
    if "annotate" in found:
        found["annotate"] = str(config.rootpath)
    if "from_plan" in found:
        found["from_plan"] = str(config.invocation_params.dir / str(found["from_plan"]))
        if "shard" not in found:
            raise SettingError(
                f"{BY_NAME['from-plan'].flag} says how to divide the tests into shards; add "
                f"{BY_NAME['shard'].flag} 1/4, for example, to choose one, or remove "
                f"{BY_NAME['from-plan'].flag}"
            )
    if "cache_inputs" in found:
        entries: object = found["cache_inputs"]
        assert isinstance(entries, tuple)
        found["cache_inputs"] = tuple(
            entry if entry.startswith("$") else str(config.rootpath / entry) for entry in entries
        )
    if found.get("launcher") == "threads":  # which runs on the CPU whatever the machine has
        found.setdefault("device", "cpu")
    return Settings(**found)  # type: ignore[arg-type]


def _profile(config: pytest.Config) -> _Profile:
    lines = _ini(config, PROFILES_KEY, "lines such as 'mine: record=full timeout=600'")
    if not isinstance(lines, list) or not all(isinstance(line, str) for line in lines):
        raise pytest.UsageError(
            f"{PROFILES_KEY} (ini) takes lines of text such as 'mine: record=full timeout=600', "
            f"not {shown(lines)}"
        )
    given = _given(config, BY_NAME["profile"], _NO_PROFILE)
    if given is None and not lines:
        return _NO_PROFILE
    from pytest_trainsafe.config.profiles import declared_profiles, profile_named

    profiles = declared_profiles(lines)
    if given is None:
        return _NO_PROFILE
    name, source = given
    return name, profile_named(name, profiles, source)


def _given(config: pytest.Config, option: Option, profile: _Profile) -> tuple[str, str] | None:
    """The text of an option ("true" for a flag) and where it is set; None for the default."""
    typed = config.getoption(option.key)
    if typed not in (None, False):
        return _checked("true" if typed is True else typed, option.flag)
    name, values = profile
    if option.name in values:
        text = values[option.name]
        source = f"{option.name} of the profile {excerpt(name)}"
        return _checked(text, source) if text else None
    source = f"{option.key} (ini)"
    if option.kind == "flag":
        return ("true", source) if _ini(config, option.key, "true or false") else None
    written = _as_text(option, _ini(config, option.key, "one line of text"))
    return None if written in ("", None) else _checked(written, source)


def _as_text(option: Option, value: object) -> object:
    """A native value of TOML as the text that the option takes; other values are returned as is."""
    if isinstance(value, bool):
        if option.name in _SWITCHES:
            return "on" if value else "off"
        return str(value).lower()
    if isinstance(value, int | float):
        return str(value)
    if isinstance(value, list) and option.takes_list and all(isinstance(e, str) for e in value):
        return ",".join(value)
    return value


def _checked(text: object, source: str) -> tuple[str, str]:
    """Returns the stripped text and `source`; raises UsageError if it is not a line of text.

    `source` names, for the message, the option, the profile or the ini key that has the text.
    """
    if not isinstance(text, str):
        raise pytest.UsageError(f"{source} takes one line of text, not {shown(text)}")
    if "\0" in text:
        raise pytest.UsageError(f"{source} takes a line without null characters, not {shown(text)}")
    return text.strip(), source


def require_encodable_folders(config: pytest.Config) -> None:
    """Raises UsageError if the path of a folder that ranks use is not valid UTF-8.

    Called only if there are trainsafe tests: other tests may run in any folder.
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
    """The words that choose the sweep's axes, such as "tp=1,2", and whether they are a default.

    The second value is True if the words come from the ini file or a profile, and False if they
    come from the command line or there are none.

    A worker of pytest-xdist uses the words that its controller sends, not those of its own command
    line, so that all processes collect the same Points.
    """
    words, source = _sweep(config, _profile(config))
    return words, source != OPTION


def _sweep(config: pytest.Config, profile: _Profile) -> tuple[list[str], str]:
    """The words that choose the sweep's axes, such as "tp=1,2", and where they were given.

    The second value names the option, the profile or the ini key for messages.
    """
    worker_input = getattr(config, "workerinput", {})
    ini = "trainsafe_sweep (ini)"
    if WORKER_SWEEP in worker_input:
        handed = worker_input[WORKER_SWEEP]
        return list(handed["words"]), ini if handed["from_ini"] else OPTION
    given = config.getoption("trainsafe_sweep")
    if given:
        return split_quoted(given), OPTION
    name, values = profile
    if "sweep" in values:
        return values["sweep"].split(), f"sweep of the profile {excerpt(name)}"
    words = _ini(config, "trainsafe_sweep", "words such as 'tp=1,2 cp=1,2'")
    words = words.split() if isinstance(words, str) else words
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise pytest.UsageError(
            f"trainsafe_sweep (ini) takes text such as 'tp=1,2 cp=1,2', not {shown(words)}"
        )
    return list(words), ini if words else OPTION


def _ini(config: pytest.Config, key: str, allowed: str) -> object:
    """A value of the ini file, as text or as a native value of TOML.

    Raises UsageError if pytest cannot read it as the key's type and TOML has no such value.
    """
    try:
        value: object = config.getini(key)
    except (
        TypeError,
        ValueError,
        pytest.UsageError,
    ) as error:  # which one depends on pytest's version
        value = _native(config, key)
        if isinstance(value, (str, bool, int, float, list)) and not _is_flag(key):
            return value
        raise pytest.UsageError(
            f"{key} (ini) takes {allowed}; it cannot be read: {excerpt(str(error), 300)}"
        ) from error
    return value


def _native(config: pytest.Config, key: str) -> object:
    """The value of a key in pytest's TOML file, of the type that TOML gives it; None for none.

    pytest checks native values against the one type of a key, and ours take text.
    """
    if config.inipath is None or config.inipath.suffix != ".toml":
        return None
    import tomllib  # only needed for a native value

    data = tomllib.loads(config.inipath.read_text(encoding="utf-8"))
    tables = data.get("tool", {}) if config.inipath.name == "pyproject.toml" else data
    return tables.get("pytest", {}).get(key)


def _is_flag(key: str) -> bool:
    return any(option.key == key and option.kind == "flag" for option in OPTIONS)
