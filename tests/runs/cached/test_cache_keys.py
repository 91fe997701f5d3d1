"""The key of a reference changes with what determines it, and with nothing else."""

from __future__ import annotations

import importlib.metadata
import itertools
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_trainsafe.config.settings import Settings
from pytest_trainsafe.frameworks import BUILT_IN
from pytest_trainsafe.launch.launch_environment import LaunchEnvironment
from pytest_trainsafe.reference_models import gpt
from pytest_trainsafe.reference_models.parallel import axes
from pytest_trainsafe.runs.cached import fingerprint
from pytest_trainsafe.runs.cached.distributions import distributions
from pytest_trainsafe.runs.cached.fingerprint import Key, make_key
from pytest_trainsafe.runs.cached.sources import sources
from pytest_trainsafe.runs.session import Session
from pytest_trainsafe.runs.specs import own_files
from pytest_trainsafe.trace.run_spec import RunSpec

PROGRAM = """
import os, json
import torch
from typing import TYPE_CHECKING
from package import parts
if TYPE_CHECKING:
    import only_for_types

def train(ctx):
    from package.deep import layer
    import_module("package.named")
"""

FILES = {
    "program.py": PROGRAM,
    "package/__init__.py": "",
    "package/parts.py": "from . import sibling\nfrom .deep.layer import Layer\n",
    "package/sibling.py": "x = 1\n",
    "package/named.py": "x = 1\n",
    "package/deep/layer.py": "from ..uncle import Layer\n",
    "package/uncle.py": "class Layer: pass\n",
    "package/not_imported.py": "x = 1\n",
    "only_for_types.py": "x = 1\n",
    "unrelated.py": "x = 1\n",
    "data/tokens.txt": "1 2 3\n",
}

_names = itertools.count()


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


@pytest.fixture
def key(project: Path) -> Callable[..., Key]:
    def make(**options: object) -> Key:
        known = {
            "module": "program",
            "device": "cpu",
            "launch_environment": LaunchEnvironment.now(),
        }
        arguments = {**known, "run": {"seed": 0}, **options}
        made = make_key(file=str(project / "program.py"), **arguments)  # type: ignore[arg-type]
        assert made is not None
        return made

    return make


def test_imports_are_followed_in_the_project_but_not_into_installed_packages(project: Path) -> None:
    found = sources(project / "program.py", "program")

    names = {str(path.relative_to(project)) for path in found.files}
    assert names == set(FILES) - {
        "package/not_imported.py",
        "only_for_types.py",
        "unrelated.py",
        "data/tokens.txt",
    }
    assert set(found.installed) == {"torch"}
    assert found.missing == set()


def test_files_of_a_linked_package_have_the_names_under_which_ranks_load_them() -> None:
    found = sources(Path(gpt.__file__), gpt.__name__)

    assert Path(axes.__file__) in found.files
    linked = [path for path in found.files if path != path.resolve()]
    assert {path.name for path in linked} <= {"__init__.py"}


@pytest.mark.parametrize("name", ["program.py", "package/named.py", "package/uncle.py"])
def test_a_changed_line_changes_the_key_and_changing_it_back_restores_it(
    project: Path, key: Callable[..., Key], name: str
) -> None:
    before = key()
    text = (project / name).read_text()

    (project / name).write_text(text + "y = 2\n")
    assert key().digest != before.digest
    (project / name).write_text(text)
    assert key() == before


@pytest.mark.parametrize("name", ["unrelated.py", "package/not_imported.py", "data/tokens.txt"])
def test_an_unrelated_file_does_not_change_the_key(
    project: Path, key: Callable[..., Key], name: str
) -> None:
    before = key()
    (project / name).write_text("z = 3\n")
    assert key() == before


def test_touching_a_file_does_not_change_the_key(project: Path, key: Callable[..., Key]) -> None:
    before = key()
    os.utime(project / "program.py", (1, 1))
    assert key() == before


def test_a_missing_module_that_is_added_changes_the_key(
    project: Path, key: Callable[..., Key]
) -> None:
    (project / "program.py").write_text(PROGRAM + "import optional_part\n")
    before = key()
    assert before.parts["code"]["missing"] == ["optional_part"]
    (project / "optional_part.py").write_text("x = 1\n")
    assert key().digest != before.digest


def test_a_module_that_shadows_another_on_the_search_path_changes_the_key(
    project: Path, key: Callable[..., Key], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = project / "first"
    first.mkdir()
    monkeypatch.syspath_prepend(str(first))
    before = key()
    (first / "package").mkdir()
    (first / "package/__init__.py").write_text("x = 1\n")
    assert key().digest != before.digest


def test_the_key_uses_the_search_path_and_variables_of_the_launch_environment(
    project: Path, key: Callable[..., Key], monkeypatch: pytest.MonkeyPatch
) -> None:
    before, earlier = key(), LaunchEnvironment.now()
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry != str(project)])
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "0")
    monkeypatch.chdir(project)
    assert key().digest != before.digest
    assert key(launch_environment=earlier) == before


def test_a_folder_that_becomes_a_package_changes_the_key(
    project: Path, key: Callable[..., Key], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = project / "first"
    (first / "package").mkdir(parents=True)
    monkeypatch.syspath_prepend(str(first))
    before = key()
    (first / "package/__init__.py").write_text("x = 1\n")
    assert key().digest != before.digest


def test_relative_paths_are_resolved_in_the_folder_of_the_launch_environment(
    project: Path, key: Callable[..., Key], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project)
    elsewhere = [entry for entry in sys.path if entry != str(project)]
    monkeypatch.setattr(sys, "path", ["package", "no such folder", "", *elsewhere])
    earlier = LaunchEnvironment.now()
    assert earlier.sys_path[:3] == (f"{project}/package", "no such folder", str(project))
    before = key(launch_environment=earlier, inputs=["data/*"])
    assert f"{project}/data/tokens.txt" in before.parts["inputs"]
    monkeypatch.chdir(project / "data")
    assert key(launch_environment=earlier, inputs=["data/*"]) == before


def test_arguments_of_the_run_change_the_key(key: Callable[..., Key]) -> None:
    assert key(run={"seed": 1}).digest != key(run={"seed": 0}).digest


def test_a_variable_that_affects_numerics_changes_the_key_and_others_do_not(
    key: Callable[..., Key], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = key()
    monkeypatch.setenv("SOMETHING_ELSE", "1")
    assert key() == before
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "0")
    assert key().digest != before.digest


def test_declared_files_and_variables_change_the_key(
    project: Path, key: Callable[..., Key], monkeypatch: pytest.MonkeyPatch
) -> None:
    declared = [f"{project}/data/*", "$LAYERS"]
    before = key(inputs=declared)
    (project / "data/tokens.txt").write_text("1 2 4\n")
    after = key(inputs=declared)
    assert after.digest != before.digest
    monkeypatch.setenv("LAYERS", "8")
    assert key(inputs=declared).digest != after.digest


def test_a_declared_input_pattern_that_matches_no_file_causes_a_note(
    project: Path, tmp_path: Path
) -> None:
    declared = (f"{project}/data/*", f"{project}/date/*", "$LAYERS")
    session = Session(Settings(cache_inputs=declared), tmp_path)
    session.close()
    note = f"trainsafe_cache_inputs: {project}/date/* matches no file, so it has no effect"
    assert list(session.notes) == [note]


def test_a_program_without_a_source_file_has_no_key() -> None:
    now = LaunchEnvironment.now()
    assert make_key({}, file="", module="m", device="cpu", launch_environment=now) is None


def test_there_is_no_key_if_the_gpu_cannot_be_queried(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fingerprint._hardware.cache_clear()
    monkeypatch.setenv("PATH", str(project))
    file, now = str(project / "program.py"), LaunchEnvironment.now()
    assert make_key({}, file=file, module="program", device="cuda", launch_environment=now) is None
    fingerprint._hardware.cache_clear()


def test_the_key_has_the_plugins_version_and_in_a_checkout_also_its_sources(
    key: Callable[..., Key],
) -> None:
    code = key().parts["code"]
    import pytest_trainsafe

    recorder = Path(pytest_trainsafe.__file__).parent / "record" / "recorder.py"
    in_checkout = "site-packages" not in recorder.parts
    assert (str(recorder) in code["files"]) == in_checkout
    assert code["installed"]["pytest-trainsafe"]


def test_a_nested_namespace_package_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    top = f"space{next(_names)}"
    (tmp_path / top / "inner").mkdir(parents=True)
    (tmp_path / top / "inner" / "leaf.py").write_text("x = 1\n")
    (tmp_path / "main.py").write_text(f"import {top}.inner.leaf\n")
    monkeypatch.syspath_prepend(str(tmp_path))

    found = sources(tmp_path / "main.py", "__main__")

    assert tmp_path / top / "inner" / "leaf.py" in found.files
    assert found.missing == set()
    assert top not in sys.modules


def test_another_build_of_an_installed_package_of_the_same_version_changes_the_key(
    project: Path, key: Callable[..., Key], monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = project / "site-packages"
    folder = installed / "built_twice-1.0.dist-info"
    folder.mkdir(parents=True)
    (installed / "built_twice.py").write_text("FACTOR = 1.0\n")
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: built_twice\nVersion: 1.0\n")
    (folder / "top_level.txt").write_text("built_twice\n")
    (project / "program.py").write_text("import built_twice\n")
    monkeypatch.syspath_prepend(str(installed))
    digests = []
    for build in ("sha256=one", "sha256=two", "sha256=two"):
        (folder / "RECORD").write_text(f"built_twice.py,{build},13\n")
        distributions.cache_clear()
        fingerprint._known.clear()
        made = key()
        assert made.parts["code"]["installed"]["built_twice"].startswith("1.0 ")
        digests.append(made.digest)
    distributions.cache_clear()
    assert digests[0] != digests[1] == digests[2]


def test_packages_belong_to_the_distributions_that_importlib_finds() -> None:
    expected = importlib.metadata.packages_distributions()

    found = distributions()

    assert {name: {each.name for each in of} for name, of in found.items()} == {
        name: set(of) for name, of in expected.items()
    }
    for each in itertools.chain(*found.values()):
        assert each.build.split()[0] == importlib.metadata.version(each.name)


def test_the_files_of_a_projects_adapters_and_instruments_are_part_of_the_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("an_adapter_of_a_project", "an_instrument_of_a_project"):
        (tmp_path / f"{name}.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    spec = RunSpec(
        program="a:train",
        dtype="float64",
        adapters=(*BUILT_IN, "an_adapter_of_a_project:Adapter", "missing:Adapter"),
        instruments=("an_instrument_of_a_project:Instrument",),
    )

    assert list(own_files(spec)) == [
        str(tmp_path / "an_adapter_of_a_project.py"),
        str(tmp_path / "an_instrument_of_a_project.py"),
    ]
