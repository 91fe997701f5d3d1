"""The parts of a model that one rank holds, under their names in the whole model.

Called by `ctx.watch` and `ctx.initialize`.  A pipeline rank holds one stage, or several chunks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from pytest_trainsafe.compat.compiler import is_compiled_wrapper, original_of
from pytest_trainsafe.core.cut_text import is_encodable
from pytest_trainsafe.record.clock import ProgramError
from pytest_trainsafe.record.model.names import canonical

#: A model; or a sequence of chunks that use the whole model's names; or a mapping from names in
#: the whole model to its parts.
Model = nn.Module | Sequence[nn.Module] | Mapping[str, nn.Module]


def parts_of(model: Model) -> list[tuple[str, nn.Module]]:
    """The parts with their prefixes; "" for a part that uses the whole model's own names.

    Raises ProgramError for anything that is not a Model.
    """
    given: Any = model
    parts: list[tuple[str, Any]]
    if isinstance(given, Mapping):
        parts = list(given.items())
    elif isinstance(given, nn.Module) and not isinstance(given, nn.ModuleList):
        parts = [("", given)]
    elif isinstance(given, Iterable):
        parts = [("", chunk) for chunk in given]
    else:
        raise _no_model(given, "")
    odd = next((part for _, part in parts if not isinstance(part, nn.Module)), None)
    if odd is not None:
        raise _no_model(given, f" with a {type(odd).__name__} in it")
    return parts


def _no_model(given: object, what: str) -> ProgramError:
    return ProgramError(
        f"the model was given as a {type(given).__name__}{what}; pass one nn.Module that contains "
        "everything that is trained or, on a rank of a pipeline, a list of its chunks, or a dict "
        "of its parts by their names in the whole model"
    )


def named_modules(parts: Sequence[tuple[str, nn.Module]]) -> dict[nn.Module, str]:
    """The canonical name of each module.  A wrapped module takes the name of its wrapper.

    `torch.compile(module)` is an exception.  There the wrapper has the name and the module inside
    has none: its calls are compiled, so only calls of the wrapper can be recorded.
    Raises ProgramError, like `named_parameters`, for a name that UTF-8 cannot encode.
    """
    named: dict[nn.Module, str] = {}
    for prefix, part in parts:
        names: dict[str, nn.Module] = {}
        for name, module in part.named_modules():
            short = canonical(name)
            if short not in names or not is_compiled_wrapper(names[short]):
                names[short] = module
        for name, module in names.items():
            named.setdefault(module, _joined(prefix, name))
    return named


def called_parts(parts: Sequence[tuple[str, nn.Module]]) -> Iterator[tuple[str, nn.Module]]:
    """Yields the outermost modules that a program can call, with their names.

    They are the parts, but in place of a part that only holds modules, such as an `nn.ModuleDict`
    of a generator and a discriminator, the modules in it.
    """
    for name, part in parts:
        if type(part).forward is not nn.Module.forward or "forward" in vars(part):
            yield name, part
        else:
            inside = ((_joined(name, child), module) for child, module in part.named_children())
            yield from called_parts([*inside])


def unwrapped(module: nn.Module) -> nn.Module:
    """The original module of a wrapper from `torch.compile(module)`; else the module itself."""
    inner: Any = module
    while is_compiled_wrapper(inner):
        inner = original_of(inner)
        while isinstance(inner, DistributedDataParallel):
            inner = inner.module
    found: nn.Module = inner
    return found


def named_parameters(
    parts: Sequence[tuple[str, nn.Module]],
) -> Iterator[tuple[str, nn.Parameter]]:
    """Yields every parameter with its canonical name; tied parameters occur once per part."""
    for prefix, part in parts:
        for name, parameter in part.named_parameters():
            yield _joined(prefix, canonical(name)), parameter


def _joined(prefix: str, name: str) -> str:
    joined = f"{prefix}.{name}" if prefix and name else prefix or name
    if not is_encodable(joined):
        raise ProgramError(
            f"the model has a module or a parameter named {joined!r}, which UTF-8 cannot encode "
            "(it contains a lone surrogate); give it another name"
        )
    return joined


def unique_parameters(named: Iterable[tuple[str, nn.Parameter]]) -> dict[str, nn.Parameter]:
    """Maps canonical names to parameters; tied parameters occur once, under their first name.

    Raises ProgramError if two different parameters have the same name.
    """
    seen: set[int] = set()
    unique: dict[str, nn.Parameter] = {}
    for name, parameter in named:
        if id(parameter) in seen:
            continue
        if name in unique:
            raise ProgramError(
                f"two parameters are called {name!r} after the levels that wrappers add to names "
                "(`module.` at the root, `_orig_mod.`) are removed; rename one of the attributes"
            )
        seen.add(id(parameter))
        unique[name] = parameter
    return unique
