"""Profiles: named groups of settings, for `--trainsafe-profile`.

A profile is a line of words `option=value`, where the option is written without `--trainsafe-`; for
a flag, its name is enough. A project defines its own profiles as lines `NAME: WORDS` of the ini key
`trainsafe_profiles`; one that has the name of a built-in profile replaces it.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping

from pytest_trainsafe.config.table import BY_NAME, OPTIONS, PROFILES_KEY
from pytest_trainsafe.core.usage import excerpt, listing, nearest, shown
from pytest_trainsafe.errors import SettingError

#: The built-in profiles, and what each is for.  docs/usage.md shows both.
BUILT_IN = {
    "dev": (
        "max-world-size=4 timeout=120 localize=30",
        "quick answers while code is being written: small Points, a short search for the fault",
    ),
    "ci": (
        "timeout=900 localize=120",
        "every change: time for slow, shared machines, and a longer search for the fault",
    ),
    "nightly": (
        "no-cache max-world-size=16 record=full timeout=3600 localize=600",
        "everything: references run again, larger Points, every tensor's values, a long search",
    ),
}

#: Options that a profile cannot set.
_NOT_IN_PROFILES = frozenset({"profile", "plan", "shard", "from-plan", "debug"})

#: Words that turn a flag on and off.
_FLAG_VALUES = {"true": "true", "1": "true", "yes": "true", "on": "true"} | dict.fromkeys(
    ("false", "0", "no", "off"), ""
)


def declared_profiles(lines: Iterable[str]) -> dict[str, Mapping[str, str]]:
    """Every profile, built-in or declared: its values as text, by option name.

    `lines` are the lines of the ini key. Raises SettingError for a line that is not a valid
    profile; the message names the line and what a profile takes.
    """
    found = {name: parse_profile(name, words) for name, (words, _) in BUILT_IN.items()}
    own: set[str] = set()
    for line in lines:
        name, colon, words = line.partition(":")
        name = name.strip()
        if not colon or not name.replace("-", "_").isidentifier():
            raise SettingError(
                f"{PROFILES_KEY} (ini) takes lines of a name and settings, such as 'mine: "
                f"record=full timeout=600', not {shown(line)}"
            )
        if name in own:
            raise SettingError(
                f"{PROFILES_KEY} (ini) has the profile {shown(name)} twice; keep one of them"
            )
        own.add(name)
        found[name] = parse_profile(name, words)
    return found


def parse_profile(name: str, words: str) -> Mapping[str, str]:
    """The values of one profile as text, by option name; "" for a flag that is off.

    Raises SettingError for words that are not settings.
    """
    source = f"the profile {excerpt(name)}"
    try:
        pieces = shlex.split(words)
    except ValueError as error:
        raise SettingError(f"{source} cannot be read: {error}: {shown(words.strip())}") from error
    values: dict[str, str] = {}
    for piece in pieces:
        word, equals, value = piece.partition("=")
        option = BY_NAME.get(word.removeprefix("--trainsafe-").replace("_", "-"))
        if option is None or option.name in _NOT_IN_PROFILES:
            known = [each.name for each in OPTIONS if each.name not in _NOT_IN_PROFILES]
            raise SettingError(
                f"{source} sets {shown(word)}, which is no option of a profile"
                f"{nearest(word, known)}; the options are {listing(known)}"
            )
        if option.name in values:
            raise SettingError(f"{source} sets {option.name} twice; keep one of them")
        if option.kind == "flag":
            if equals and value.lower() not in _FLAG_VALUES:
                raise SettingError(
                    f"{source}: {option.name} takes true, false, or no value, which means true; "
                    f"not {shown(value)}"
                )
            value = _FLAG_VALUES[value.lower()] if equals else "true"
        elif not value:
            raise SettingError(f"{source}: {option.name} needs a value: {option.name}=...")
        values[option.name] = value
    return values


def profile_named(
    name: str, profiles: Mapping[str, Mapping[str, str]], source: str
) -> Mapping[str, str]:
    """The values of a profile; raises SettingError, which lists the profiles, if there is none."""
    if name not in profiles:
        raise SettingError(
            f"{source} takes one of {listing(profiles)}, not {shown(name)}"
            f"{nearest(name, profiles)}; the ini key {PROFILES_KEY} can declare more profiles"
        )
    return profiles[name]


def documentation() -> str:
    """The table of built-in profiles in docs/usage.md."""
    rows = [f"| `{name}` | `{words}` | {what} |" for name, (words, what) in BUILT_IN.items()]
    return "\n".join(["| profile | settings | for |", "|---|---|---|", *rows]) + "\n"
