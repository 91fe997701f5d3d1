"""What ranks had to import is preloaded for the next: what is installed, never the project."""

from __future__ import annotations

import json
import sys

import yaml

from pytest_trainsafe.launch.forkserver.preload import installed
from pytest_trainsafe.reference_models import gpt


def test_installed_packages_and_this_one_are_preloaded() -> None:
    names = [gpt.__name__, yaml.__name__]
    assert installed([*names, json.__name__]) == names


def test_the_project_is_imported_anew_for_each_group() -> None:
    assert sys.modules[__name__].__spec__ is not None
    assert installed([__name__, "no.such.module"]) == []
