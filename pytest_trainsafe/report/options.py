"""The options of the command that reruns a test."""

from __future__ import annotations

from pytest_trainsafe.config.settings import Settings


def options_of(settings: Settings) -> str:
    """The options that, together with the node id, rerun the same test with the same settings."""
    default = Settings()
    words = []
    if settings.sweep and not settings.sweep_from_ini:
        swept = " ".join(f"{axis}={','.join(values)}" for axis, values in settings.sweep)
        words.append(f"--trainsafe-sweep {swept}")
    if settings.dtypes:
        words.append(f"--trainsafe-dtype {','.join(settings.dtypes)}")
    if settings.profile:
        words.append(f"--trainsafe-profile {settings.profile}")
    if settings.seed != default.seed:
        words.append(f"--trainsafe-seed {settings.seed}")
    return "".join(f" {word}" for word in words)
