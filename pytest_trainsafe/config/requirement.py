"""Whether the installed torch is one that this release supports.

Called when a trainsafe test is collected (`sweep.collect`), and before ranks are launched for
`torchrun_group`.  pip enforces the requirement too, but torch is often installed by other means:
a vendor's container, conda, a build from source, `pip install --no-deps`.
"""

from __future__ import annotations

import importlib.metadata

from packaging.requirements import Requirement
from packaging.version import InvalidVersion, Version


def refused_torch() -> str:
    """Why the installed torch is not supported, in one sentence; "" if it is.

    Compares package metadata, so torch is not imported and the minimum is stated only in
    pyproject.toml.  A build from source (2.6.0a0+git1234) counts as its release.  If there is
    no metadata, as in a bare checkout, any torch is accepted.
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
