"""Task: the program that every rank of a group runs, as data that can be written to a file."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from pytest_trainsafe.core.prepared import prepared
from pytest_trainsafe.core.schedule import Schedule
from pytest_trainsafe.errors import ArgumentError, ArgumentTypeError
from pytest_trainsafe.launch import data
from pytest_trainsafe.launch.launch_environment import LaunchEnvironment

Device = Literal["cpu", "cuda"]


class Script(msgspec.Struct, frozen=True, tag="script"):
    """A training script and its arguments.  Every rank runs the script unchanged as `__main__`."""

    path: str
    if TYPE_CHECKING:
        args: Sequence[str] = ()
    else:  # what is decoded is a tuple; callers may give a list
        args: tuple[str, ...] = ()


class Function(msgspec.Struct, frozen=True, tag="function"):
    """An importable function; `name` has the form `module:qualname`.

    `file` is the module's file, from which ranks load a module that they cannot import by name
    (such as a test file); empty if only the name is known.
    """

    name: str
    file: str = ""


@prepared
class Task(msgspec.Struct, frozen=True, kw_only=True):
    """A program for every rank of a group, its arguments, and the environment to run it in.

    `arguments` holds the arguments as `data.encode` encoded them when the Task was made, so later
    changes do not reach the ranks.  `sys_path` and `cwd` are those of the process that made the
    Task.  `env` is added to the ranks' environment.  `threads` is OMP_NUM_THREADS of each rank.
    `live` is the label of the ranks' lines that the console shows while they run, such as
    "reference, float32" ("" for no label), None to show none.  `debug` is the rank that gets the
    terminal at a `breakpoint()`, which other ranks ignore; -1 if all ranks ignore it, and None if
    it is an error.  `schedule` is how ranks that share a process take turns; a launcher of
    processes cannot run a Task that has one.
    """

    target: Function | Script
    arguments: bytes
    world_size: int
    env: dict[str, str] = {}
    device: Device = "cpu"
    threads: int = 1
    sys_path: tuple[str, ...] = ()
    cwd: str = ""
    live: str | None = None
    debug: int | None = None
    schedule: Schedule | None = None

    @classmethod
    def of(
        cls,
        target: Callable[..., Any] | str | Script,
        /,
        *args: Any,
        world_size: int,
        env: Mapping[str, str] | None = None,
        device: Device = "cpu",
        threads: int = 1,
        launch_environment: LaunchEnvironment | None = None,
        **kwargs: Any,
    ) -> Task:
        """Makes a Task from a module-level function, a "package.module:function" or a Script.

        `launch_environment` gives the working directory and module search path, by default the
        current ones of this process.  Raises ArgumentError or ArgumentTypeError if the ranks could
        not find the target, and NotDataError if an argument cannot be sent to them.
        """
        size: object = world_size
        if type(size) is not int:
            raise ArgumentTypeError(
                f"world_size is {size!r}; pass the number of ranks as an int, such as 2"
            )
        if world_size < 1:
            raise ArgumentError(f"world_size is {world_size}; a group needs at least one rank")
        if device not in ("cpu", "cuda"):
            raise ArgumentError(f"device is {device!r}; allowed are 'cpu' and 'cuda'")
        if isinstance(target, Script) and (args or kwargs):
            raise ArgumentTypeError(
                f"Task.of cannot pass {len(args) + len(kwargs)} arguments to the script "
                f"{target.path}; give a script's arguments as `Script(path, args)`"
            )
        around = launch_environment or LaunchEnvironment.now()
        encoded = [data.encode(arg, f"argument {i} of {target!r}") for i, arg in enumerate(args)]
        named = {k: data.encode(v, f"argument {k!r} of {target!r}") for k, v in kwargs.items()}
        return cls(
            target=_target(target),
            arguments=msgspec.msgpack.encode((encoded, named)),
            world_size=world_size,
            env=dict(env or {}),
            device=device,
            threads=threads,
            sys_path=around.sys_path,
            cwd=around.cwd,
        )

    @property
    def args(self) -> tuple[Any, ...]:
        """The positional arguments, decoded."""
        return tuple(data.decode(each) for each in self._encoded()[0])

    @property
    def kwargs(self) -> dict[str, Any]:
        """The keyword arguments, decoded."""
        return {name: data.decode(each) for name, each in self._encoded()[1].items()}

    def _encoded(self) -> tuple[list[bytes], dict[str, bytes]]:
        return msgspec.msgpack.decode(self.arguments, type=tuple[list[bytes], dict[str, bytes]])

    def __str__(self) -> str:
        return self.target.path if isinstance(self.target, Script) else self.target.name


def _target(target: Callable[..., Any] | str | Script) -> Function | Script:
    if isinstance(target, Script):
        path = Path(target.path).absolute()
        if not path.is_file():
            raise ArgumentError(f"there is no script {path}")
        return Script(str(path), tuple(map(str, target.args)))
    if isinstance(target, str):
        module, _, name = target.partition(":")
        if not (module and name and all(map(str.isidentifier, f"{module}.{name}".split(".")))):
            raise ArgumentError(
                f"{target!r} is not the name of a function; write it as 'package.module:function'"
            )
        return Function(target)
    return _function(target)


def _function(target: Callable[..., Any]) -> Function:
    if isinstance(target, partial):
        raise ArgumentTypeError(
            f"{target!r} is a partial; pass its function and the arguments separately"
        )
    if inspect.ismethod(target):
        raise ArgumentTypeError(f"{target!r} is a bound method; pass a module-level function")
    if not inspect.isfunction(target):
        raise ArgumentTypeError(
            f"{target!r} is not a Python function. The ranks import the program, "
            "so pass a module-level function, its name, or a Script."
        )
    module, name = target.__module__, target.__qualname__
    if "<lambda>" in name:
        raise ArgumentTypeError(
            f"{name} of {module} is a lambda, which the ranks cannot import; define a function"
        )
    if "<locals>" in name:
        raise ArgumentTypeError(
            f"{name} of {module} is nested in a function, which the ranks cannot import; "
            "move it to the top of its module"
        )
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    if found is not target:
        raise ArgumentTypeError(
            f"{module}:{name} is not the function that was passed but {found!r}, which the ranks "
            "would import instead; pass a function that can be imported by its own name"
        )
    # Not inspect.getsourcefile, which follows __wrapped__ into the decorated function's module.
    file = getattr(sys.modules[module], "__file__", None) or ""
    return Function(f"{module}:{name}", str(Path(file).absolute()) if file else "")


def device_of(wanted: str, world_size: int) -> Device:
    """The device of a Run, from the setting "auto", "cuda" or "cpu": one GPU per rank, or the CPU.

    "auto" takes GPUs if there are enough.
    """
    if wanted == "auto":
        import torch  # slow

        enough = torch.cuda.is_available() and torch.cuda.device_count() >= world_size
        return "cuda" if enough else "cpu"
    return "cuda" if wanted == "cuda" else "cpu"
