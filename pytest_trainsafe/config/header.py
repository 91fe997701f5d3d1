"""The line in pytest's header: the settings in force, and the network of the ranks."""

from __future__ import annotations

from pytest_trainsafe.config.settings import Settings
from pytest_trainsafe.core.usage import excerpt


def header(settings: Settings) -> str | None:
    """`trainsafe: launcher torchrun, device cpu, sweep tp=1,2`; None if nothing was set."""
    default = Settings()
    if settings == default:
        return None
    parts = [f"launcher {settings.launcher}", f"device {settings.device}", network(settings)]
    if settings.dtypes:
        parts.append(f"dtype {','.join(settings.dtypes)}")
    if settings.sweep:
        words = " ".join(f"{axis}={','.join(values)}" for axis, values in settings.sweep)
        parts.append(f"sweep {excerpt(words, 1000)}")
    if settings.max_world_size != default.max_world_size:
        parts.append(f"world size <= {settings.max_world_size}")
    if settings.seed != default.seed:
        parts.append(f"seed {settings.seed}")
    if settings.accept:
        parts.append(f"accepting {','.join(settings.accept)}")
    if settings.slots:
        parts.append(f"{settings.slots} slots")
    if settings.no_cache:
        parts.append("no reference cache")
    if settings.keep_traces:
        parts.append(f"traces in {excerpt(settings.keep_traces, 1000)}")
    return "trainsafe: " + ", ".join(parts)


def network(settings: Settings) -> str:
    """`network private`, or `network host` with the reason why private is not available."""
    from pytest_trainsafe.launch.resources.namespace import is_private, why_not

    if is_private(settings.network):
        return "network private"
    reason = f" (private is not available: {why_not()})" if settings.network == "auto" else ""
    return f"network host{reason}"
