"""Which files only hand a collective on, so that messages name the line that wanted it.

Asked in the ranks by `ledger` and in the parent by `stacks`; imports no torch.
"""

from __future__ import annotations

import os
import sysconfig
from pathlib import Path

#: Folders of frameworks' own functions around those of `torch.distributed`.
_LAYERS = (os.path.join(os.sep, "deepspeed", "comm", ""),)

_PACKAGE = Path(__file__).parents[1]
#: What every recorded rank has below its program and around its calls.
_OURS = tuple(f"{_PACKAGE / name}{os.sep}" for name in ("launch", "record"))

_STDLIB = sysconfig.get_path("stdlib") + os.sep
_INSTALLED = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")


def passes_on(file: str) -> bool:
    """Whether the file is ours, or a framework's layer over `torch.distributed`: deepspeed/comm."""
    return file.startswith(_OURS) or any(layer in file for layer in _LAYERS)


def is_stdlib(file: str) -> bool:
    """Whether the file is of Python's own library."""
    return file.startswith(_STDLIB) and not is_installed(file)


def is_installed(file: str) -> bool:
    """Whether the file is of a package that somebody installed, and not the user's own."""
    return any(folder in file for folder in _INSTALLED)


#: Functions of torch, by file, that do nothing but call what they were given.
_CALLERS = {
    ("nn/modules/module.py", "_wrapped_call_impl"),
    ("nn/modules/module.py", "_call_impl"),
    ("nn/modules/module.py", "inner"),
    ("nn/modules/container.py", "forward"),
    ("utils/_contextlib.py", "decorate_context"),
    ("distributed/c10d_logger.py", "wrapper"),
    ("optim/optimizer.py", "wrapper"),
    ("optim/optimizer.py", "_use_grad"),
    ("optim/lr_scheduler.py", "wrapper"),
    ("_dynamo/eval_frame.py", "_fn"),
    ("_dynamo/eval_frame.py", "fn"),
    ("_compile.py", "inner"),
    ("autograd/function.py", "apply"),
    ("autograd/graph.py", "_engine_run_backward"),
    ("autograd/__init__.py", "backward"),
    ("autograd/grad_mode.py", "decorate_context"),
    ("amp/autocast_mode.py", "decorate_autocast"),
    ("amp/autocast_mode.py", "decorate_fwd"),
    ("amp/autocast_mode.py", "decorate_bwd"),
}
_TORCH = f"{os.sep}torch{os.sep}"


def only_calls(file: str, function: str) -> bool:
    """Whether a frame only calls the next one: a wrapper of torch's, or ours.

    A traceback is easier to read without them, and keeps more of the program's own frames where
    it is shortened.
    """
    if file.startswith(_OURS):
        return True
    _, found, inner = file.rpartition(_TORCH)
    return bool(found) and (inner.replace(os.sep, "/"), function) in _CALLERS
