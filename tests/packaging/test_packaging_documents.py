"""Commands and links of the documents exist; no file has paths of one machine."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

#: Paths that exist on one machine only.  /home/me is the folder of the user in examples.
ELSEWHERE = re.compile(r"(?<![\w.$}])(?:/(?:root|home(?!/me)|Users|tmp|mnt)/|~/)")


@pytest.fixture(scope="module")
def tracked(root: Path) -> list[Path]:
    """The text files of the repository."""
    if not (root / ".git").exists():
        pytest.skip("not a checkout, so git cannot say which files are the repository's")
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=root,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split("\0")
    return [root / name for name in listed if name and (root / name).is_file()]


def make_commands(text: str) -> set[str]:
    """The targets of `make` commands: at the start of a line of code, or in backticks."""
    return set(re.findall(r"(?:^[ \t]*(?:- )?(?:run: )?|`)make ([a-z][\w-]*)", text, re.MULTILINE))


def make_targets(root: Path) -> set[str]:
    makefile = (root / "Makefile").read_text(encoding="utf-8")
    return set(re.findall(r"^([a-z][\w-]*):", makefile, re.MULTILINE))


def test_every_make_command_in_a_document_is_a_target(root: Path) -> None:
    documents = [*root.glob("*.md"), *root.glob("docs/**/*.md"), *root.glob(".github/**/*.*")]
    mentioned = {
        command
        for document in documents
        for command in make_commands(document.read_text(encoding="utf-8"))
    }

    assert mentioned
    assert mentioned <= make_targets(root)


def test_the_readme_has_the_command_that_ci_runs(root: Path) -> None:
    script = (root / ".ci" / "run").read_text(encoding="utf-8")
    [command] = make_commands(script)

    assert command in make_commands((root / "README.md").read_text(encoding="utf-8"))
    assert {"test", "demo"} <= make_targets(root)


def test_every_relative_link_of_a_document_points_to_an_existing_file(root: Path) -> None:
    broken = [
        f"{document.relative_to(root)}: {target}"
        for document in [*root.glob("*.md"), *root.glob("docs/**/*.md")]
        for target in re.findall(r"\]\(([^)#\s]+)", document.read_text(encoding="utf-8"))
        if "://" not in target and not (document.parent / target).exists()
    ]

    assert broken == []


def test_no_file_contains_a_machine_specific_path(root: Path, tracked: list[Path]) -> None:
    found = []
    for file in tracked:
        if file == Path(__file__):
            continue
        try:
            text = file.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        found += [f"{file.relative_to(root)}: {match[0]}" for match in ELSEWHERE.finditer(text)]

    assert tracked
    assert found == []


@pytest.mark.parametrize("place", ["see /home/ada/traces", "(/tmp/x)", "'/root/main'", "~/venv"])
def test_machine_specific_paths_are_recognized(place: str) -> None:
    assert ELSEWHERE.search(place)


@pytest.mark.parametrize(
    "place", ["docs/home/x", "/home/me/train.py", "https://a.org/home/x", "$HOME/tmp/x", "a~/b"]
)
def test_other_paths_are_not_recognized_as_machine_specific(place: str) -> None:
    assert not ELSEWHERE.search(place)
