"""The mesh that a program declares: its axes, their order, and the role of each axis.

A role says what an axis is for: data, context, tensor or pipeline parallelism (dp, cp, tp, pp).

A program that declares nothing has `DEFAULT`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

from pytest_trainsafe.core.usage import listing, nearest, shown
from pytest_trainsafe.errors import SweepError

#: What a mesh axis can mean.  Every axis has one role; the built-in axes are named by theirs.
ROLES: dict[str, str] = {
    "dp": "its ranks train on different samples, and their gradients are reduced",
    "cp": "its ranks hold parts of one sequence, and their gradients are reduced",
    "tp": "its ranks share the samples, and may hold parts of one layer",
    "pp": "its ranks hold different layers",
}

#: Names that a mesh axis cannot have, because they mean something else in a sweep or the marker.
TAKEN = frozenset(
    {
        *("sp", "vpp", "zero", "recompute", "compile", "dtype", "microbatches"),
        *("args", "candidate_args", "reference", "seed", "timeout", "accept", "mesh"),
        *("expect", "healthy", "packs"),
    }
)

#: The most axes of a mesh, overlapping ones included, and the most characters of a name.
MAX_AXES, MAX_CHARACTERS = 16, 40


@dataclass(frozen=True, slots=True)
class MeshAxis:
    """One axis as data: a mesh axis with a role (dp, cp, tp or pp), or an overlapping axis.

    An overlapping axis has no role and reuses the ranks of the mesh axes `over`.
    """

    name: str
    role: str = ""
    over: tuple[str, ...] = ()


@dataclass(frozen=True, init=False)
class Mesh:
    """The axes that multiply into the world size, outermost first: the last varies fastest.

        Mesh("pp", "dp_replicate", "dp_shard", "tp", roles={"dp_replicate": "dp", "dp_shard": "dp"})

    `roles` gives the meaning of an axis whose name is not itself a role: "dp", "cp", "tp" or
    "pp" (see `ROLES`). Several axes may share a role. Annotations, `ctx.microbatches` and
    `ctx.coordinates["dp"]` refer to a role, which stands for all its axes together, in rank
    order.

    `overlaps` declares axes that reuse the ranks of other axes and do not change the world size.
    With `{"ep": ("dp_shard", "cp")}`, an ep group consists of ranks that are neighbours along cp
    first, then along dp_shard; the experts are divided among them. By default ep overlaps the axes
    of the roles dp and cp, in rank order.

    Raises SweepError for an invalid declaration.
    """

    entries: tuple[MeshAxis, ...]

    def __init__(
        self,
        *axes: str,
        roles: Mapping[str, str] | None = None,
        overlaps: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        given = _mapping("roles", roles, "{'dp_shard': 'dp'}")
        laid = _mapping("overlaps", overlaps, "{'ep': ('dp_shard', 'cp')}")
        _check_names(axes, tuple(laid))
        for name in given:
            if name not in axes:
                raise SweepError(
                    f"Mesh: roles has the key {shown(name)}, which is not one of the mesh axes "
                    f"({listing(axes)}){nearest(str(name), axes)}"
                )
        entries = [MeshAxis(name, _role(name, given)) for name in axes]
        for entry in entries:
            _check_alone(entry, entries)
        entries += [MeshAxis(name, "", _over(name, over, axes)) for name, over in laid.items()]
        object.__setattr__(self, "entries", tuple(entries))

    @classmethod
    def of(cls, entries: Iterable[MeshAxis]) -> Mesh:
        """The mesh with these axes, checked as by `Mesh(...)`; DEFAULT if there are none."""
        return _of(tuple(entries))

    @property
    def declared(self) -> tuple[MeshAxis, ...]:
        """The axes from which `of` makes this mesh again; empty for DEFAULT."""
        return () if self == DEFAULT else self.entries

    @cached_property
    def axes(self) -> tuple[str, ...]:
        """The mesh axes, outermost first."""
        return tuple(entry.name for entry in self.entries if entry.role)

    @cached_property
    def fastest_first(self) -> tuple[str, ...]:
        """The mesh axes, innermost first: the first one varies fastest with the rank."""
        return tuple(reversed(self.axes))

    @cached_property
    def overlaps(self) -> dict[str, tuple[str, ...]]:
        """Each overlapping axis, with the mesh axes that it overlaps, outermost first."""
        of_data = tuple(axis for axis in self.axes if self.role(axis) in ("dp", "cp"))
        declared = {entry.name: entry.over for entry in self.entries if not entry.role}
        return {"ep": of_data, **declared}

    @cached_property
    def of_layouts(self) -> frozenset[str]:
        """The names that a layout may use: the mesh axes, and the roles dp, cp, tp and pp."""
        return frozenset({*self.axes, *ROLES})

    @cached_property
    def names(self) -> frozenset[str]:
        """The names of all axes of this mesh, overlapping ones included, and dp, cp, tp and pp."""
        return self.of_layouts.union(self.overlaps)

    def role(self, axis: str) -> str:
        """The role (dp, cp, tp or pp) of a mesh axis; any other name is returned as it is."""
        return self._roles.get(axis, axis)

    def members(self, axis: str) -> tuple[str, ...]:
        """The mesh axes that a name stands for, outermost first.

        A mesh axis stands for itself, a role for all axes that have it, and an overlapping axis for
        the axes that it overlaps.
        """
        if axis in self._roles:
            return (axis,)
        if axis in ROLES:
            return tuple(name for name in self.axes if self._roles[name] == axis)
        return self.overlaps.get(axis, (axis,))

    def expand(self, axes: Iterable[str]) -> tuple[str, ...]:
        """The mesh axes that the given names stand for, without duplicates.

        A name is a mesh axis, or a role (dp, cp, tp or pp), which stands for all axes that have it.
        """
        return tuple(dict.fromkeys(name for axis in axes for name in self.members(axis)))

    def fold(self, axes: Iterable[str], sizes: Mapping[str, int]) -> tuple[str, ...]:
        """The given mesh axes, with all axes of a role (such as dp) replaced by the role's name.

        A role is used even if some of its axes are not given, as long as these have size 1.
        """
        given, folded = tuple(axes), dict[str, None]()
        for axis in given:
            role = self.role(axis)
            whole = all(name in given for name in self.members(role) if sizes[name] > 1)
            folded[role if whole else axis] = None
        return tuple(folded)

    @cached_property
    def _roles(self) -> dict[str, str]:
        return {entry.name: entry.role for entry in self.entries if entry.role}


def _mapping(word: str, given: object, example: str) -> Mapping[str, object]:
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise SweepError(f"Mesh: {word} takes a dict such as {example}, not {shown(given)}")
    return given


def _check_names(axes: Sequence[object], overlapping: Sequence[object]) -> None:
    if not axes:
        raise SweepError("Mesh() has no axes; give their names, outermost first: Mesh('pp', 'dp')")
    names = [*axes, *overlapping]
    if len(names) > MAX_AXES:
        raise SweepError(f"Mesh: {len(names)} axes are too many; a mesh has at most {MAX_AXES}")
    for name in names:
        if not isinstance(name, str) or not (
            name.isidentifier() and name.isascii() and len(name) <= MAX_CHARACTERS
        ):
            raise SweepError(
                f"Mesh: {shown(name)} is not the name of an axis; a name is a Python identifier of "
                f"at most {MAX_CHARACTERS} letters, digits and underscores"
            )
        if name in TAKEN:
            raise SweepError(
                f"Mesh: {name!r} is already the name of an axis or a setting of sweeps; give the "
                "axis another name"
            )
    if repeated := next((name for name in names if names.count(name) > 1), None):
        raise SweepError(f"Mesh: the axis {repeated!r} is declared twice; give each axis once")
    if "ep" in axes:
        raise SweepError(
            "Mesh: the axis ep reuses the ranks of other axes; name those axes in "
            "overlaps={'ep': ('dp', 'cp')}"
        )
    if role := next((name for name in overlapping if name in ROLES), None):
        raise SweepError(
            f"Mesh: overlaps has the axis {role!r}, which is the name of a role; rename the axis"
        )


def _role(name: str, given: Mapping[str, object]) -> str:
    role = given.get(name, name if name in ROLES else None)
    if role is None:
        raise SweepError(
            f"Mesh: the axis {name!r} has no role; give roles={{{name!r}: ...}}, one of "
            + "; ".join(f"{role!r} ({meaning})" for role, meaning in ROLES.items())
        )
    if not isinstance(role, str) or role not in ROLES:
        raise SweepError(
            f"Mesh: {name!r} has the unknown role {shown(role)}; the roles are {listing(ROLES)}"
        )
    if name in ROLES and role != name:
        raise SweepError(
            f"Mesh: the axis {name!r} is named after a role, so it cannot have the role {role!r}"
        )
    return role


def _check_alone(entry: MeshAxis, entries: Sequence[MeshAxis]) -> None:
    """Raises SweepError if an axis has the name of its role but other axes have that role too.

    The name would otherwise stand for two sizes: that of the axis and that of the role.
    """
    if entry.name != entry.role:
        return
    if others := [each.name for each in entries if each.role == entry.role and each != entry]:
        raise SweepError(
            f"Mesh: the axis {entry.name!r} has the name of its role, but that is also the role of "
            f"{listing(others)}; rename the axis {entry.name!r} so that the two can be told apart"
        )


def _over(name: str, given: object, axes: Sequence[str]) -> tuple[str, ...]:
    if not isinstance(given, (list, tuple)) or not given:
        raise SweepError(
            f"Mesh: overlaps[{name!r}] takes a tuple of the mesh axes that {name!r} overlaps, "
            f"outermost first, not {shown(given)}"
        )
    for axis in given:
        if axis not in axes:
            raise SweepError(
                f"Mesh: {name!r} overlaps {shown(axis)}, which is not a mesh axis; the mesh axes "
                f"are {listing(axes)}"
            )
        if given.count(axis) > 1:
            raise SweepError(f"Mesh: {name!r} overlaps {axis!r} twice; give each axis once")
    return tuple(given)


@lru_cache(maxsize=64)
def _of(entries: tuple[MeshAxis, ...]) -> Mesh:
    if not entries:
        return DEFAULT
    if odd := next((entry for entry in entries if bool(entry.role) == bool(entry.over)), None):
        raise SweepError(
            f"Mesh: the axis {shown(odd.name)} must have either a role or axes that it overlaps; "
            "name it in roles= or in overlaps=, but not in both"
        )
    mesh = [entry for entry in entries if not entry.over]
    return Mesh(
        *(entry.name for entry in mesh),
        roles={entry.name: entry.role for entry in mesh},
        overlaps={entry.name: entry.over for entry in entries if entry.over},
    )


#: The mesh of a program that declares none.  The order is Megatron-LM's default
#: (`tp-cp-ep-dp-pp`, fastest first): neighbouring ranks share a tensor.
DEFAULT = Mesh("pp", "dp", "cp", "tp")
