"""Finds the private names of torch in the source of a file, by its syntax tree.

A name is private if it begins with one underscore, except for the attributes `_trainsafe_...` that
this package gives to objects.  What a variable holds is not known, so the name
of an attribute decides: it is torch's if a class of torch has it (`of_torch`), unless it is listed
in `ALLOWED`; a name that neither this package nor a listed one defines is reported as well.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import torch.distributed.fsdp
import torch.distributed.tensor
import torch.utils.data
from torch import nn
from torch.optim.lr_scheduler import LRScheduler

#: Names that may be used outside of `compat`, and why.
ALLOWED = {
    # Other packages', on objects that a syntax tree does not know.
    "_fields": "named tuples have it as a documented attribute",
    "_make": "named tuples have it as a documented method",
    "_replace": "named tuples have it as a documented method",
    "_str": "a TracebackException of Python",
    "_config": "a process of multiprocessing",
    "_bit_generator": "a RandomState of NumPy",
    "_rand": "NumPy's own RandomState, in a module that was looked up",
    "_file": "a terminal writer of pytest",
    "_request": "an item of pytest",
    "_fixtureinfo": "an item of pytest",
    "_partition_sizes": "a parameter that DeepSpeed's AutoTP divided",
    "_subparam_sizes": "a parameter that DeepSpeed's AutoTP divided",
    "_subparam_shard_widths": "a parameter that DeepSpeed's AutoTP divided",
    "_take_model_step": "an engine of DeepSpeed",
    "_index_in_param_group": "a parameter under DeepSpeed's ZeRO",
    "_hp_mapping": "a parameter under DeepSpeed's ZeRO",
    "_dp_group": "a parameter under DeepSpeed's ZeRO",
    "_allgather_params_coalesced": "a function of DeepSpeed's ZeRO",
    # Words of this package that an attribute of torch happens to have too.
    "_grad": "the end of the kinds of gradients",
    "_rank": "the end of the names of coordinates",
    "_values": "set on a frozen object of this package",
    # torch's, as words that are compared with names and through which nothing is reached.
    "_orig_mod": "a level in the names of parameters, which checkpoints have too",
    "_fsdp_wrapped_module": "a level in the names of parameters",
    "_checkpoint_wrapped_module": "a level in the names of parameters",
    "_wrapped_call_impl": "a function on the stack, which reports leave out",
    "_call_impl": "a function on the stack, which reports leave out",
    "_all_gather_base": "a collective that frameworks call by this name, which is recorded",
    "_reduce_scatter_base": "a collective that frameworks call by this name, which is recorded",
    "torch._dynamo": "a module that the fork server imports if programs do",
    "torch.distributed._composable": "the place of classes, which reports leave out",
    "torch._C": "the place of functions that are observed",
    "torch._jit_internal": "the place of functions that are observed",
}

#: Functions whose second argument is the name of an attribute.
_BY_NAME = frozenset({"getattr", "hasattr", "setattr", "delattr"})

#: What looks private names up; only `compat` may have it.
_DOOR = "pytest_trainsafe.compat.private.Capability"

_DOTTED = re.compile(r"torch(\.\w+)+")


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith(("__", "_trainsafe_")) and name != "_"


def _has_private(path: str) -> bool:
    # The names below torch.ops are those of registered operators, such as `_softmax`.
    return not path.startswith("torch.ops.") and any(map(is_private, path.split(".")))


@cache
def of_torch() -> frozenset[str]:
    """The private attributes of those classes of torch whose objects the package is given."""
    from torch.distributed import _composable_state, distributed_c10d
    from torch.distributed.fsdp._fully_shard import _fsdp_param_group, _fsdp_state
    from torch.utils._python_dispatch import TorchDispatchMode

    classes: list[Any] = [
        *(torch.Tensor, nn.Parameter, nn.Module, torch.Generator, torch.UntypedStorage),
        *(torch.optim.Optimizer, LRScheduler, torch.amp.GradScaler, torch.library.Library),
        *(torch.utils.data.DataLoader, nn.parallel.DistributedDataParallel, TorchDispatchMode),
        *(torch.distributed.ProcessGroup, torch.distributed.tensor.DTensor),
        *(torch.distributed.fsdp.FSDPModule, torch._ops.OpOverload, torch.autograd.graph.Node),
    ]
    held = vars(nn.Identity())  # a module sets these by `super().__setattr__`
    modules = {sys.modules[cls.__module__] for cls in classes if cls.__module__ in sys.modules}
    modules |= {_fsdp_state, _fsdp_param_group, _composable_state, distributed_c10d}
    modules.add(import_module("torch.distributed._composable.replicate"))
    names = {*held, *(name for cls in classes for name in dir(cls))}
    for module in modules:
        names |= set(_set_on_self(module))
    return frozenset(filter(is_private, names))


def _set_on_self(module: ModuleType) -> Iterator[str]:
    try:
        tree = ast.parse(inspect.getsource(module))
    except (OSError, TypeError):  # it is written in C
        return
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id="self"), attr=name, ctx=ast.Store()):
                yield name


def defined(trees: Iterable[ast.AST]) -> frozenset[str]:
    """The private names that these sources define: functions, classes, attributes and slots."""
    names: set[str] = set()
    for node in (node for tree in trees for node in ast.walk(tree)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            if _is_own(node.value):
                names.add(node.attr)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)
    return frozenset(filter(is_private, names))


def private_uses(tree: ast.AST, own: frozenset[str] = frozenset()) -> list[str]:
    """Where a source uses private names of torch, as "line: what".

    `own` are the private names that the package defines.
    """
    bound = dict(_bound(tree))
    texts = (node for node in ast.walk(tree) if isinstance(node, ast.JoinedStr))
    parts = {id(part) for text in texts for part in text.values}
    found = {
        (node.lineno, text)
        for node, text in _uses(tree, bound, own)
        if id(node) not in parts  # of a formatted text, such as f"{kind}_grad"
    }
    return [f"{line}: {text}" for line, text in sorted(found)]


def _bound(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """The names that imports and assignments of a source bind, and the dotted paths behind them."""
    known: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for each in node.names:
                known[each.asname or each.name.partition(".")[0]] = (
                    each.name if each.asname else each.name.partition(".")[0]
                )
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for each in node.names:
                known[each.asname or each.name] = f"{node.module}.{each.name}"
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            targets, value = node.targets, node.value
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            targets, value = [node.target], node.value
        else:
            continue
        pairs: list[tuple[ast.expr, ast.expr]] = [(target, value) for target in targets]
        for target, given in pairs:
            if isinstance(target, ast.Tuple) and isinstance(given, ast.Tuple):
                pairs += zip(target.elts, given.elts, strict=False)
            path = _path(given, known)
            if isinstance(target, ast.Name) and path:
                known.setdefault(target.id, path)
    yield from known.items()


def _path(node: ast.expr, bound: Mapping[str, str]) -> str:
    """The dotted path of an expression, by imports and aliases; "" if it is not known."""
    if isinstance(node, ast.Name):
        return bound.get(node.id, "")
    if isinstance(node, ast.Attribute):
        inner = _path(node.value, bound)
        return f"{inner}.{node.attr}" if inner else ""
    match node:
        case ast.Call(func=ast.Name(id="cast"), args=[_, given]):
            return _path(given, bound)
    return ""


def _uses(
    tree: ast.AST, bound: Mapping[str, str], own: frozenset[str]
) -> Iterator[tuple[Any, str]]:
    for node in ast.walk(tree):
        match node:
            case ast.Import() | ast.ImportFrom():
                for path in _imported(node):
                    if path == _DOOR or (path.startswith("torch.") and _has_private(path)):
                        yield node, f"imports {path}"
            case ast.Attribute(value=holder, attr=name):
                if _is_torchs(holder, name, bound, own):
                    yield node, f"uses {ast.unparse(node)}"
            case ast.Call(func=ast.Name(id=function), args=[holder, given, *_]):
                word = _text(given, tree) if function in _BY_NAME else ""
                if _is_torchs(holder, word, bound, own):
                    yield node, f"uses {word} by {function}"
            case ast.Constant(value=str(word)):
                dotted = _DOTTED.fullmatch(word) and _has_private(word)
                if (dotted or word in of_torch()) and word not in ALLOWED:
                    yield node, f"names {word}"
            case ast.ClassDef(bases=[_, *_], body=body):
                for each in body:
                    if isinstance(each, ast.FunctionDef) and each.name in _overridden():
                        yield each, f"overrides {each.name}"


@cache
def _overridden() -> frozenset[str]:
    """The private methods of those classes of torch from which the package derives its own."""
    from torch.utils._python_dispatch import TorchDispatchMode

    classes = (TorchDispatchMode, torch.overrides.TorchFunctionMode, nn.Module)
    return frozenset(name for cls in classes for name in dir(cls) if is_private(name))


def _imported(node: ast.Import | ast.ImportFrom) -> Iterator[str]:
    for each in node.names:
        if isinstance(node, ast.Import):
            yield each.name
        elif node.module and not node.level:
            yield f"{node.module}.{each.name}"


def _is_own(node: ast.expr) -> bool:
    """Whether an expression is the object whose method this is."""
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id == "super"
    return isinstance(node, ast.Name) and node.id in ("self", "cls")


def _is_torchs(holder: ast.expr, name: str, bound: Mapping[str, str], own: frozenset[str]) -> bool:
    """Whether `name` is a private name of torch, or of nobody who is known."""
    if not is_private(name) or _is_own(holder):
        return False
    path = _path(holder, bound)
    if path == "torch" or path.startswith("torch."):
        return _has_private(f"{path}.{name}")
    root = path.partition(".")[0]
    if root and root != "pytest_trainsafe":
        return False  # another package's, by an import
    return name not in ALLOWED and (name in of_torch() or name not in own)


def _text(node: ast.expr, tree: ast.AST) -> str:
    """The text that an expression is: a constant, or a name to which the source assigns one."""
    if isinstance(node, ast.Name):
        return next((text for name, text in _constants(tree) if name == node.id), "")
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def _constants(tree: ast.AST) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant(value=str(text))):
                yield name, text


def sources(package: Path) -> dict[str, ast.AST]:
    """The syntax trees of the package's files by their paths, except for the two exempt folders.

    `compat` is where the names belong; programs in `reference_models` are users of torch.
    """
    return {
        path: ast.parse(file.read_text(encoding="utf-8"))
        for folder in sorted(each for each in package.iterdir())
        if folder.name not in ("compat", "reference_models", "__pycache__")
        for file in ([folder] if folder.is_file() else sorted(folder.resolve().rglob("*.py")))
        if file.suffix == ".py"
        for path in [file.resolve().relative_to(package.resolve().parent).as_posix()]
    }
