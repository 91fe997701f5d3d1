"""The lines in pytest's header: settings that differ from their defaults, and ranks' network."""

from __future__ import annotations

from pytest_trainsafe.config.settings import Settings
from pytest_trainsafe.config.table import OPTIONS
from pytest_trainsafe.core.pages import page
from pytest_trainsafe.core.usage import excerpt

#: The network that has no risk to name.
PRIVATE = "network private"

#: Maximum number of characters of one value, and of the words of a sweep.
_MOST, _MAX_OF_SWEEP = 200, 1000


def header(settings: Settings) -> list[str]:
    """The lines `trainsafe: profile ci, launcher torchrun` and `trainsafe sweep: tp=1,2 cp=1,2`.

    They show settings that differ from their defaults, and the words of the sweep; a line
    with nothing to show is left out.
    """
    default = Settings()
    changed = [o for o in OPTIONS if getattr(settings, o.field) != getattr(default, o.field)]
    parts = []
    for option in changed:
        words = "" if option.kind == "flag" else option.shown(getattr(settings, option.field))
        if option.kind != "words":
            parts.append(f"{option.name} {excerpt(words, _MOST)}".rstrip())
    added = {
        "adapters": settings.adapters,
        "judges": settings.judges,
        "relations": settings.relations,
        "rungs": settings.rungs,
        "launchers": tuple(name for name, _ in settings.launchers),
    }
    parts += [f"{what} {excerpt(','.join(own), _MOST)}" for what, own in added.items() if own]
    sweep = "".join(option.shown(settings.sweep) for option in changed if option.kind == "words")
    lines = [f"trainsafe: {', '.join(parts)}"] if parts else []
    return [*lines, f"trainsafe sweep: {excerpt(sweep, _MAX_OF_SWEEP)}"] if sweep else lines


def network(settings: Settings) -> str:
    """`network private`, or `network host` with its risk, and why "auto" could not use private."""
    from pytest_trainsafe.launch.resources.namespace import is_private, why_not

    if is_private(settings.network):
        return PRIVATE
    reason = f" (private is not available: {why_not()})" if settings.network == "auto" else ""
    risk = "other users of this machine can change what ranks exchange"
    return f"network host{reason}: {risk}, see {page('running.md#the-network-of-ranks')}"
