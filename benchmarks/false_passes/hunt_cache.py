"""References that must not be reused: pytest runs twice, and between the runs something changes that a program reads.

In each story a factor of the loss comes from somewhere: a helper module, a data file, the environment, the command
line.  The single device uses it; the candidate has it hard-coded, which is right as long as it is 1 (the first run
passes) and wrong after the change (the second run must not pass).  A reference of the first run that is reused after
the change hides this.  In the clean twin both sides read the factor, and both runs pass.  (Where a reference is reused
that should not be, the clean twin fails instead: documented for files and variables that nobody names.)

`STORIES[name](folder, fault)` writes the files of a story into an empty folder and returns its `Step`s: what to do, in
this order.  A `Change` is called; a `Run` is `pytest *arguments` in the folder, with `environ` added to the environment,
and `expect` says how its single test ends: "pass", "fail", or "fail-or-said" (a failure, an inconclusive check, or a
line of the output that names what the cache does not know).
"""

from __future__ import annotations

import os
import textwrap
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Change:
    """Something that changes between two runs."""

    what: str
    act: Callable[[], object]


@dataclass(frozen=True)
class Run:
    """A run of pytest in the story's folder."""

    expect: str
    arguments: tuple[str, ...] = ()
    environ: dict[str, str] = field(default_factory=dict)


Step = Change | Run
Story = Callable[[Path, str], list[Step]]

PROGRAM = """
import json, os
from pathlib import Path
import torch
import torch.distributed as dist
from torch import nn
{imports}

def values(ctx, step, index):
    generator = torch.Generator().manual_seed(1000 * step + index)
    both = torch.randn(2, 4, 8, generator=generator, dtype=torch.float32).to(ctx.dtype)
    return both[0], both[1]

def train(ctx, fault="", factor=1.0):
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8)).to(ctx.dtype)
    ctx.initialize(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ctx.watch(model, optimizer)
    {source}
    if fault and ctx.world_size > 1:
        factor = 1.0  # fault: stale
    for step in range(2):
        with ctx.step():
            for index in ctx.microbatches(4):
                with ctx.microbatch(index):
                    inputs, targets = values(ctx, step, index)
                    loss = (model(inputs) - targets).square().mean() / 4 * float(factor)
                    ctx.loss(loss)
                    loss.backward()
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad, group=ctx.group("dp"))
            optimizer.step()
            optimizer.zero_grad()
"""

TEST = """
import pytest
from pytest_trainsafe import Script, assert_trainsafe
from {module} import train

@pytest.mark.trainsafe({program}, dp=[2]{marker})
def test_story(candidate_trace, reference_trace):
    assert_trainsafe(candidate_trace, reference_trace)
"""


def write(file: Path, text: str) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(textwrap.dedent(text).lstrip())
    return file


def project(
    folder: Path,
    fault: str,
    source: str,
    imports: str = "",
    ini: str = "",
    module: str = "program",
    marker: str | None = None,
) -> None:
    """A program, its test, and an ini file, which makes the folder the root directory."""
    (folder / "program.py").write_text(PROGRAM.format(imports=imports, source=source))
    told = f', args={{"fault": {fault!r}}}' if marker is None else marker
    (folder / "test_story.py").write_text(TEST.format(module=module, program="train", marker=told))
    (folder / "pytest.ini").write_text(f"[pytest]\npythonpath = .\n{ini}")


def expected(fault: str, planted: str = "fail") -> str:
    """What the run after the change must come to."""
    return planted if fault else "pass"


def changed(file: Path, text: str, keep_time: bool = False) -> Change:
    """Another text of a file; its size stays, and with `keep_time` its time of modification too."""

    def act() -> None:
        before = file.stat()
        write(file, text)
        if keep_time:
            os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))

    return Change(f"{file.name} becomes {text!r}", act)


def helper_module(folder: Path, fault: str) -> list[Step]:
    """A constant of a module that the program imports."""
    project(folder, fault, "factor = helper.FACTOR", "import helper")
    helper = write(folder / "helper.py", "FACTOR = 1.0\n")
    return [Run("pass"), changed(helper, "FACTOR = 2.0\n"), Run(expected(fault))]


def second_hand(folder: Path, fault: str) -> list[Step]:
    """The constant lies two imports away, behind a package's star import."""
    project(folder, fault, "factor = FACTOR", "from package import *")
    write(folder / "package/__init__.py", "from .middle import *\n")
    write(folder / "package/middle.py", "from package.inner.constants import FACTOR\n")
    write(folder / "package/inner/__init__.py", "")
    constants = write(folder / "package/inner/constants.py", "FACTOR = 1.0\n")
    return [Run("pass"), changed(constants, "FACTOR = 2.0\n"), Run(expected(fault))]


def late_import(folder: Path, fault: str) -> list[Step]:
    """The import is inside the function."""
    project(folder, fault, "from settings.training import FACTOR as factor")
    write(folder / "settings/__init__.py", "")
    training = write(folder / "settings/training.py", "FACTOR = 1.0\n")
    return [Run("pass"), changed(training, "FACTOR = 2.0\n"), Run(expected(fault))]


def computed_import(folder: Path, fault: str) -> list[Step]:
    """The module's name is computed."""
    source = 'factor = importlib.import_module("_".join(["recipe", "small"])).FACTOR'
    project(folder, fault, source, "import importlib")
    recipe = write(folder / "recipe_small.py", "FACTOR = 1.0\n")
    return [Run("pass"), changed(recipe, "FACTOR = 2.0\n"), Run(expected(fault))]


def executed_file(folder: Path, fault: str) -> list[Step]:
    """A configuration in Python that is executed, not imported (as nanoGPT's configurator does)."""
    source = 'names = {}; exec(Path("config.py").read_text(), names); factor = names["factor"]'
    project(folder, fault, source)
    config = write(folder / "config.py", "factor = 1.0\n")
    return [Run("pass"), changed(config, "factor = 2.0\n"), Run(expected(fault, "fail-or-said"))]


def loaded_from_location(folder: Path, fault: str) -> list[Step]:
    """A module that is loaded from a file by importlib, without a name on the search path."""
    source = (
        'spec = importlib.util.spec_from_file_location("extra", Path("plugins") / "extra.py"); '
        "extra = importlib.util.module_from_spec(spec); spec.loader.exec_module(extra); factor = extra.FACTOR"
    )
    project(folder, fault, source, "import importlib.util")
    extra = write(folder / "plugins/extra.py", "FACTOR = 1.0\n")
    return [Run("pass"), changed(extra, "FACTOR = 2.0\n"), Run(expected(fault, "fail-or-said"))]


def outside_package(folder: Path, fault: str) -> list[Step]:
    """A module of another project, on PYTHONPATH, without a version."""
    inner, outer = folder / "project", folder / "elsewhere"
    inner.mkdir()
    project(inner, fault, "factor = shared_recipes.FACTOR", "import shared_recipes")
    shared = write(outer / "shared_recipes/__init__.py", "FACTOR = 1.0\n")
    arguments, environ = (
        ("--rootdir", "project", "-c", "project/pytest.ini", "project"),
        {"PYTHONPATH": str(outer)},
    )
    return [
        Run("pass", arguments, environ),
        changed(shared, "FACTOR = 2.0\n"),
        Run(expected(fault), arguments, environ),
    ]


def module_becomes_package(folder: Path, fault: str) -> list[Step]:
    """The helper module stays as it is, but a package of its name now takes precedence."""
    project(folder, fault, "factor = helper.FACTOR", "import helper")
    write(folder / "helper.py", "FACTOR = 1.0\n")
    change = Change(
        "a package helper", lambda: write(folder / "helper/__init__.py", "FACTOR = 2.0\n")
    )
    return [Run("pass"), change, Run(expected(fault))]


def other_path(folder: Path, fault: str) -> list[Step]:
    """Another folder comes first on the search path, with a module of the same name."""
    project(folder, fault, "factor = variant.FACTOR", "import variant")
    write(folder / "one/variant.py", "FACTOR = 1.0\n")
    write(folder / "two/variant.py", "FACTOR = 2.0\n")
    first, second = ({"PYTHONPATH": str(folder / name)} for name in ("one", "two"))
    return [Run("pass", (), first), Run(expected(fault), (), second)]


def linked_module(folder: Path, fault: str) -> list[Step]:
    """The helper is a symbolic link, which comes to point to another file."""
    project(folder, fault, "factor = helper.FACTOR", "import helper")
    write(folder / "versions/one.py", "FACTOR = 1.0\n")
    write(folder / "versions/two.py", "FACTOR = 2.0\n")
    link = folder / "helper.py"
    link.symlink_to("versions/one.py")

    def act() -> None:
        link.unlink()
        link.symlink_to("versions/two.py")

    return [Run("pass"), Change("helper.py points to two.py", act), Run(expected(fault))]


def data_file(folder: Path, fault: str) -> list[Step]:
    """A file of data that nobody names to the cache."""
    project(folder, fault, 'factor = Path("factor.txt").read_text()')
    data = write(folder / "factor.txt", "1.0\n")
    return [Run("pass"), changed(data, "2.0\n"), Run(expected(fault, "fail-or-said"))]


def named_data_file(folder: Path, fault: str) -> list[Step]:
    """A file that `trainsafe_cache_inputs` names; its size and time of modification stay as they were."""
    project(
        folder,
        fault,
        'factor = Path("data/factor.txt").read_text()',
        ini="trainsafe_cache_inputs = data/*.txt\n",
    )
    data = write(folder / "data/factor.txt", "1.0\n")
    return [Run("pass"), changed(data, "2.0\n", keep_time=True), Run(expected(fault))]


def new_named_file(folder: Path, fault: str) -> list[Step]:
    """The pattern that names the files matches a new file after the change."""
    source = 'factor = sum(float(each.read_text()) for each in Path("data").rglob("*.txt"))'
    project(folder, fault, source, ini="trainsafe_cache_inputs = data/**/*.txt\n")
    write(folder / "data/one.txt", "1.0\n")
    change = Change("a second file", lambda: write(folder / "data/deep/two.txt", "1.0\n"))
    return [Run("pass"), change, Run(expected(fault))]


def yaml_file(folder: Path, fault: str) -> list[Step]:
    """A recipe in YAML beside the program, found by the program's own path."""
    source = 'factor = Path(__file__).with_name("recipe.yaml").read_text().split(": ")[1]'
    project(folder, fault, source)
    recipe = write(folder / "recipe.yaml", "factor: 1.0\n")
    return [Run("pass"), changed(recipe, "factor: 2.0\n"), Run(expected(fault, "fail-or-said"))]


def environment(folder: Path, fault: str) -> list[Step]:
    """A variable of the environment that nobody names to the cache."""
    project(folder, fault, 'factor = os.environ["STORY_FACTOR"]')
    return [
        Run("pass", (), {"STORY_FACTOR": "1.0"}),
        Run(expected(fault, "fail-or-said"), (), {"STORY_FACTOR": "2.0"}),
    ]


def named_environment(folder: Path, fault: str) -> list[Step]:
    """A variable that `trainsafe_cache_inputs` names."""
    project(
        folder,
        fault,
        'factor = os.environ.get("STORY_FACTOR", "1.0")',
        ini="trainsafe_cache_inputs = $STORY_FACTOR\n",
    )
    return [Run("pass"), Run(expected(fault), (), {"STORY_FACTOR": "2.0"})]


def seed(folder: Path, fault: str) -> list[Step]:
    """The factor follows from the seed, which the command line changes."""
    project(folder, fault, "factor = 1.0 + ctx.seed")
    return [Run("pass"), Run(expected(fault), ("--trainsafe-seed", "1"))]


def argument(folder: Path, fault: str) -> list[Step]:
    """An argument in the marker."""
    markers = [f', args={{"fault": {fault!r}, "factor": {value}}}' for value in (1.0, 2.0)]
    project(folder, fault, "pass", marker=markers[0])
    test = folder / "test_story.py"
    text = TEST.format(module="program", program="train", marker=markers[1])
    return [
        Run("pass"),
        Change("factor=2.0 in the marker", lambda: test.write_text(text)),
        Run(expected(fault)),
    ]


def working_directory(folder: Path, fault: str) -> list[Step]:
    """A relative path means another file, because the command starts in another folder."""
    project(folder, fault, 'factor = Path("factor.txt").read_text()')
    write(folder / "factor.txt", "1.0\n")
    write(folder / "below/factor.txt", "2.0\n")
    # conftest.py changes the folder for the second run, as pytest is started in `folder` both times.
    write(folder / "conftest.py", 'import os\nos.chdir(os.environ.get("STORY_FOLDER", "."))\n')
    return [
        Run("pass"),
        Run(expected(fault), (), {"STORY_FOLDER": str(folder / "below")}),
    ]


def script_arguments(folder: Path, fault: str) -> list[Step]:
    """A script whose arguments change."""
    project(folder, fault, "pass")
    script = (
        "import sys\nimport pytest_trainsafe\nfrom program import train\n"
        "train(pytest_trainsafe.context(), sys.argv[2] if len(sys.argv) > 2 else '', float(sys.argv[1]))\n"
    )
    write(folder / "script.py", script)
    test = folder / "test_story.py"

    def text(factor: str) -> str:
        arguments = [factor, fault] if fault else [factor]
        return TEST.format(
            module="program", program=f'Script("script.py", args={arguments!r})', marker=""
        )

    test.write_text(text("1.0"))
    return [
        Run("pass"),
        Change("the argument 2.0", lambda: test.write_text(text("2.0"))),
        Run(expected(fault)),
    ]


def script_helper(folder: Path, fault: str) -> list[Step]:
    """A module that a script imports."""
    steps = script_arguments(folder, fault)
    (folder / "program.py").write_text(
        PROGRAM.format(imports="import helper", source="factor = helper.FACTOR")
    )
    helper = write(folder / "helper.py", "FACTOR = 1.0\n")
    return [steps[0], changed(helper, "FACTOR = 2.0\n"), steps[2]]


def two_workers(folder: Path, fault: str) -> list[Step]:
    """pytest-xdist: the workers share references, and one of them sees the change of a helper."""
    project(folder, fault, "factor = helper.FACTOR", "import helper")
    helper = write(folder / "helper.py", "FACTOR = 1.0\n")
    workers = ("-n", "2")
    return [Run("pass", workers), changed(helper, "FACTOR = 2.0\n"), Run(expected(fault), workers)]


def deleted_bytecode(folder: Path, fault: str) -> list[Step]:
    """A helper is changed and then has the time and size it had; the run writes no bytecode."""
    project(folder, fault, "factor = helper.FACTOR", "import helper")
    helper = write(folder / "helper.py", "FACTOR = 1.0\n")
    environ = {"PYTHONDONTWRITEBYTECODE": "1"}
    return [
        Run("pass", (), environ),
        changed(helper, "FACTOR = 2.0\n", keep_time=True),
        Run(expected(fault), (), environ),
    ]


def earlier_commit(folder: Path, fault: str) -> list[Step]:
    """A helper changes, and changes back: the third run may reuse the first run's reference, not the second's."""
    project(folder, "", "factor = helper.FACTOR", "import helper")
    helper = write(folder / "helper.py", "FACTOR = 2.0\n")
    program = folder / "program.py"
    text = (
        program.read_text().replace("if fault and ctx", "if True and ctx")
        if fault
        else program.read_text()
    )
    return [
        Run("pass"),
        changed(helper, "FACTOR = 1.0\n"),
        Run("pass"),
        Change("the fault comes in", lambda: program.write_text(text)),
        Run("pass"),
        changed(helper, "FACTOR = 2.0\n"),
        Run(expected(fault)),
    ]


STORIES: dict[str, Story] = {
    each.__name__: each
    for each in (
        helper_module,
        second_hand,
        late_import,
        computed_import,
        executed_file,
        loaded_from_location,
        outside_package,
        module_becomes_package,
        other_path,
        linked_module,
        data_file,
        named_data_file,
        new_named_file,
        yaml_file,
        environment,
        named_environment,
        seed,
        argument,
        working_directory,
        script_arguments,
        script_helper,
        two_workers,
        deleted_bytecode,
        earlier_commit,
    )
}


def steps(folder: Path, story: str, fault: str = "stale") -> list[Step]:
    """The steps of a story; `fault=""` for its clean twin."""
    folder.mkdir(parents=True, exist_ok=True)
    return STORIES[story](folder, fault)
