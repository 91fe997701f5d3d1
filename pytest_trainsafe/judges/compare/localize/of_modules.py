"""The sentence on faults in the forward or backward of modules.

Called by `judges.compare.localize.description`.  Only tensors that were compared are said to agree.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from pytest_trainsafe.core.finding import Finding
from pytest_trainsafe.core.usage import name_list
from pytest_trainsafe.judges.compare.explain.module_code import module_code
from pytest_trainsafe.judges.compare.localize.blame import Fault
from pytest_trainsafe.judges.compare.localize.code.sharper import entered
from pytest_trainsafe.judges.compare.localize.code.unreached import unreached_text
from pytest_trainsafe.judges.compare.localize.conditions import condition_text
from pytest_trainsafe.judges.compare.localize.inputs import Compared
from pytest_trainsafe.trace.schema import ModuleEvent

_ROOT = "the root module"


def of_modules(
    group: Sequence[Fault],
    modules: Mapping[str, ModuleEvent],
    compared: Compared,
    failing: Iterable[Finding],
) -> str:
    """The sentence on a group of faults of one phase in modules of one class.

    `failing` are the failing findings in dataflow order.
    """
    fault = group[0]
    names = [f.target or _ROOT for f in group]
    of = name_list(names, "module")
    if fault.condition:
        return f"the forward of {of}: {condition_text(fault.condition, len(group) == 1)}"
    cls = module_code(modules, fault.target)[0]
    if fault.cut:
        return unreached_text(fault.cut, fault.target, cls)
    if fault.uncalled and fault.target in modules:
        cls = modules[fault.target].cls  # also torch's classes
    own = modules.get(fault.target)
    # A class of the project that calls one of torch's modules, whose code is not at fault.
    around = own is not None and not cls.startswith(own.cls)
    named = f"{of} ({'in ' * around}class {cls})" if cls else of
    one = len(group) == 1
    its, are, them = ("its", "is", "it") if one else ("their", "are", "them")
    if fault.uncalled == "never":
        return f"{named} {are} never called; the reference calls {them}"
    if fault.uncalled:
        return f"{named} {are} called less often than in the reference"
    if fault.between:
        of_root = names == [_ROOT]
        code = f"the forward of {named}"
        if cls and not around and "," not in cls:  # its own forward, not a replacement
            code = f"{cls}.forward{'' if of_root else f' of {of}'}"
        if fault.phase == "backward":
            code = f"the backward of {code.removeprefix('the forward of ')}"
        return (
            f"{code}, outside {its} submodules: given equal outputs of these, {its} own code, "
            f"attributes or parameters give another result{entered(fault, failing)}"
        )
    if fault.phase == "forward":
        differs = f"the forward of {named}: {its} output differs"
        if not any(compared.inputs(f.target) for f in group):
            return f"{differs}; {its} inputs were not compared"
        if any(f.not_compared for f in group):
            return f"{differs}; not all of {its} inputs were compared"
        return f"the forward of {named}: given equal inputs, {its} output differs"
    where = f"the code of class {cls} around {of}" if around and cls else named
    return (
        f"the backward of {where}: given equal gradients of {its} output, the gradients of "
        f"{its} inputs differ"
    )


def given_beside(faults: Sequence[Fault]) -> str:
    """A clause on a wrong loss beside a module's wrong backward, if every forward agrees; else "".

    What reaches the loss from the module is then none of its outputs.
    """
    names = [each.target or _ROOT for each in faults if each.phase == "backward" and each.between]
    if not names or any(each.phase == "forward" for each in faults):
        return ""
    return (
        f"; the outputs of modules agree, so look at what {name_list(names, 'module')} gives the "
        "loss beside its output, such as an auxiliary loss"
    )
