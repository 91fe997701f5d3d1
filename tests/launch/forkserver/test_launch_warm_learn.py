"""Of the modules that ranks imported, installed ones are preloaded, never the project's."""

from __future__ import annotations

import json
import sys

import yaml

from pytest_trainsafe.launch.forkserver.preload import installed
from pytest_trainsafe.reference_models import gpt


def test_installed_packages_and_the_plugin_are_preloaded_but_not_the_stdlib() -> None:
    names = [gpt.__name__, yaml.__name__]
    assert installed([*names, json.__name__]) == names


def test_modules_of_the_project_are_not_preloaded() -> None:
    assert sys.modules[__name__].__spec__ is not None
    assert installed([__name__, "no.such.module"]) == []
