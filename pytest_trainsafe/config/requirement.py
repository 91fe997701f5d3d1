"""Whether the installed torch is one that this release works with.

Asked when a trainsafe test is collected (`sweep.collect`), and before ranks are launched for
`torchrun_group`.  pip refuses an old torch too, but torch often comes by other ways: a container
of a vendor, conda, a build of one's own, `pip install --no-deps`.
"""

from __future__ import annotations

import importlib.metadata

from packaging.requirements import Requirement
from packaging.version import InvalidVersion, Version


def refused_torch() -> str:
    """Why the installed torch is refused, in one sentence that names it and the floor; else "".

    Compares metadata with metadata, so torch is not imported, and the floor is written down in
    pyproject.toml alone.  A build from source (2.6.0a0+git1234) counts as its release.  Where
    there is no metadata to compare, as in a bare checkout, nothing is refused.
    """
    try:
        found = importlib.metadata.version("torch")
        ours = importlib.metadata.requires("pytest-trainsafe") or []
        version = Version(Version(found).base_version)
    except (importlib.metadata.PackageNotFoundError, InvalidVersion):
        return ""
    for requirement in map(Requirement, ours):
        if requirement.name == "torch" and version not in requirement.specifier:
            return (
                f"torch {found} is installed, and pytest-trainsafe needs {requirement}: "
                f"pip install --upgrade '{requirement}'"
            )
    return ""
