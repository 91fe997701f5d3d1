"""Loads packs by name, and says what must be observed to check them, and in which Run."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from importlib import resources
from pathlib import Path

from msgspec import structs

from pytest_trainsafe.core.usage import listing, nearest, shown
from pytest_trainsafe.judges.learn.names import LIBRARIES, patterns
from pytest_trainsafe.judges.learn.packs.pack import SUFFIX, Pack
from pytest_trainsafe.judges.learn.packs.read import PackError, parse_pack, read_pack
from pytest_trainsafe.judges.learn.packs.update import contradictions
from pytest_trainsafe.judges.learn.relation import Needs, Relation
from pytest_trainsafe.runs.specs import Role, spec_of
from pytest_trainsafe.sweep.case import Case
from pytest_trainsafe.trace.run_spec import Observe, RunSpec

#: The folder of a project's packs, below its root directory.
FOLDER = "invariants"


def pack_path(name: str, root: Path) -> Path:
    """The file of a project's pack: invariants/NAME.pack below the root directory."""
    return root / FOLDER / f"{name}{SUFFIX}"


def load_packs(
    names: Collection[str], root: Path, relations: Mapping[str, Relation]
) -> tuple[Pack, ...]:
    """Load the packs with these names or paths.

    A text that ends in ".pack" is a path, relative to the root directory.  Any other text is the
    name of a pack of the project (`pack_path`) or, if there is none, of a pack of
    pytest-trainsafe.  Raises PackError if a pack does not exist or is damaged, and if packs
    contradict each other.
    """
    packs = tuple(_load(name, root, relations) for name in names)
    clashes = contradictions(packs, relations)
    if clashes:
        raise PackError(str(clashes[0]))
    return packs


def _load(name: str, root: Path, relations: Mapping[str, Relation]) -> Pack:
    if name.endswith(SUFFIX):
        return read_pack(root / name, relations)
    own = pack_path(name, root)
    if own.exists():
        return read_pack(own, relations)
    shipped = shipped_packs()
    if name not in shipped:
        raise PackError(
            f"there is no pack {shown(name)}: {own} does not exist, and the packs of "
            f"pytest-trainsafe are {listing(shipped) or 'none'}{nearest(name, shipped)}"
        )
    file = resources.files("pytest_trainsafe.invariants") / f"{name}{SUFFIX}"
    return parse_pack(file.read_text(encoding="utf-8"), str(file), relations)


def shipped_packs() -> list[str]:
    """The names of the packs of pytest-trainsafe."""
    files = resources.files("pytest_trainsafe.invariants").iterdir()
    return sorted(each.name.removesuffix(SUFFIX) for each in files if each.name.endswith(SUFFIX))


def needs_of(packs: Sequence[Pack], relations: Mapping[str, Relation]) -> Needs:
    """The APIs, and the attributes of objects, that must be observed to check the packs."""
    needs = Needs()
    for claim in {each.claim for pack in packs for each in pack.invariants}:
        needs |= relations[claim.relation].needs(claim)
    return needs


def observation_of(packs: Sequence[Pack], relations: Mapping[str, Relation]) -> Observe:
    """The settings with which ranks observe only what is needed to check the packs."""
    needs = needs_of(packs, relations)
    names = {name for api in needs.apis for name in patterns(api)}
    apis = {name for name in names if name.partition(".")[0] in LIBRARIES}
    variables = {name for kind in needs.variables for name in variable_patterns(*kind)}
    contents = {
        f"{name} {place}"
        for api, place in needs.all_contents
        for name in patterns(api)
        if name in apis
    }
    return Observe(
        apis=tuple(sorted(apis)),
        variables=tuple(sorted(variables)),
        contents=tuple(sorted(contents)),
    )


def observed_spec(case: Case, observe: Observe, role: Role = "candidate") -> RunSpec:
    """The RunSpec of a Run whose ranks observe API calls and states.

    The Run is in the last of the test's dtypes.  `observe` says which calls and states are
    observed.  Of the tensors, only the loss is recorded.
    """
    spec = spec_of(case, role, case.rungs[-1])
    return structs.replace(
        spec, observe=observe, record="sketch", kinds=("loss",), rng=False, watch_casts=False
    )


def variable_patterns(kind: str, attribute: str) -> tuple[str, ...]:
    """The patterns of `observe(variables=...)` for one kind of variable.

    A kind is the class of a part of the model ("torch.nn.Parameter"), or what another object is
    used for ("optimizer.param_groups").  The patterns match the names of all objects of the kind,
    such as "optimizer1.param_groups.0".
    """
    head, _, rest = kind.partition(".")
    if head == "torch":
        return (f"{kind}.{attribute}",)
    below = f".{rest}" if rest else ""
    names = (head, f"{head}[0-9]*", f"{head}.[0-9]*")
    return tuple(f"{name}{below}{tail}.{attribute}" for name in names for tail in ("", ".*"))
