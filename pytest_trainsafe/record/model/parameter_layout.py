"""Finds the layout of a parameter, from the first of several sources that has one.

Called by the recorder and by `ctx.initialize`, inside the ranks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pytest_trainsafe.align.words import describe
from pytest_trainsafe.annotations.declared import Annotations
from pytest_trainsafe.annotations.fields import GRADIENT_AXES
from pytest_trainsafe.compat.tensors import local_part
from pytest_trainsafe.core.indices import LayoutError
from pytest_trainsafe.core.layout import REPLICATED, Layout, Owned, Partial, Slices, axes_of
from pytest_trainsafe.core.mesh import Mesh
from pytest_trainsafe.core.point import Point
from pytest_trainsafe.record.adapter import adapters
from pytest_trainsafe.record.layouts.attributes import attribute_layout
from pytest_trainsafe.record.layouts.dtensor import dtensor_layout, is_dtensor


def parameter_layout(
    name: str, parameter: Any, point: Point, annotations: Annotations
) -> tuple[Layout, str]:
    """The layout of a parameter and its source.

    The sources are, in this order, DTensor placements, a framework's adapter, the attribute
    `tensor_model_parallel` and the annotations.  A parameter that none of them describes is whole
    on every rank.  If the attribute is False, an annotation takes precedence, because Megatron-LM
    sets it to False on every parameter that it knows nothing about.  At Points with ep, a parameter
    that has `allreduce = False` (Megatron-LM's mark of an expert) or is annotated `expert_parallel`
    exists only on the ranks that own the expert.
    """
    size = _expert_tp_size(name, parameter, annotations)
    axes = _axes(name, parameter, point, annotations)
    layout, source = _cut(name, parameter, point, annotations, axes)
    expert = getattr(parameter, "allreduce", True) is False or annotations.expert_parallel(name)
    ep, tp = int(point.get("ep", 1)), point.size("tp")
    if size is not None and size != tp:
        layout = (*layout, Owned(_of_experts(point), ep, size))
    elif (expert or size is not None) and ep > 1:
        layout = (*layout, Owned(tuple(reversed(point.mesh.overlaps["ep"])), ep))
    return layout, source


def _of_experts(point: Point) -> tuple[str, ...]:
    """The axes of the ranks among which experts with their own tensor-parallel size are divided.

    Ranks are numbered by their coordinates along these axes (see `Owned`).  The axis that varies
    fastest comes first.  The axes are the mesh axes of tensor parallelism (by default tp), followed
    by the mesh axes whose ranks ep reuses (by default cp, then dp).
    """
    mesh = point.mesh
    return (*reversed(mesh.members("tp")), *reversed(mesh.overlaps["ep"]))


def _expert_tp_size(name: str, parameter: Any, annotations: Annotations) -> int | None:
    """The tensor-parallel size that is declared for an expert's parameter; None without one.

    The parameter's attribute `expert_tp_size`, which only pytest-trainsafe reads, takes precedence
    over the annotation of the same name.  Raises LayoutError if the attribute is no positive int.
    """
    marked = getattr(parameter, "expert_tp_size", None)
    if marked is None:
        return annotations.expert_tp_size(name)
    if not isinstance(marked, int) or isinstance(marked, bool) or marked < 1:
        raise LayoutError(
            f"{name} has expert_tp_size {marked!r}; it must be the number of ranks that an "
            "expert's weights are split over, 1 or more"
        )
    return marked


def _axes(name: str, parameter: Any, point: Point, annotations: Annotations) -> tuple[str, ...]:
    """The axes of tensor parallelism that split a parameter, outermost first.

    This is tp alone, unless the parameter has its own tensor-parallel size (`_expert_tp_size`).
    Then the parameter is split over the first n axes in the list of `_of_experts`: the mesh axes of
    tensor parallelism, followed by those whose ranks ep reuses.  n is the number for which the
    product of the sizes of these n axes equals the parameter's tensor-parallel size; n is 0 for
    size 1.  Raises LayoutError if there is no such n.
    """
    size = _expert_tp_size(name, parameter, annotations)
    if size is None:
        return ("tp",)
    axes: tuple[str, ...] = ()
    product = 1
    counted = _of_experts(point)
    for axis in counted:
        if product >= size:
            break
        axes, product = (axis, *axes), product * point.size(axis)
    if product != size:
        sizes = " ".join(f"{axis}={point.size(axis)}" for axis in counted)
        products = [" * ".join(counted[: count + 1]) for count in range(len(counted))]
        allowed = f"1, {', '.join(products[:-1])} or {products[-1]}"
        raise LayoutError(
            f"{name} has an expert_tp_size of {size}, but at this Point ({sizes}) only "
            f"expert_tp_size {allowed} has a layout. Leave this Point out of the sweep"
        )
    return axes


def _cut(
    name: str, parameter: Any, point: Point, annotations: Annotations, axes: tuple[str, ...]
) -> tuple[Layout, str]:
    if is_dtensor(parameter):
        return dtensor_layout(parameter, point.sizes), "dtensor"
    found = (adapter.layout(name, parameter, point.sizes) for adapter in adapters())
    cut = next((layout for layout in found if layout is not None), None)
    if cut is not None:
        return cut, "attribute"
    marked = attribute_layout(name, parameter, point.sizes, axes)
    if marked and getattr(parameter, "tensor_model_parallel", False):
        return marked, "attribute"
    annotated = annotations.parameter(name, point, _shape(parameter), axes)
    if annotated is not None:
        return annotated
    return REPLICATED, "default" if marked is None else "attribute"


def _shape(parameter: Any) -> tuple[int, ...]:
    """The shape of this rank's part of a parameter, even if ZeRO stage 3 has partitioned it."""
    if is_dtensor(parameter):
        return tuple(local_part(parameter).shape)
    return tuple(getattr(parameter, "ds_shape", parameter.shape))


def gradient_partial_axes(
    name: str, parameter: Any, point: Point, annotations: Annotations
) -> tuple[str, ...]:
    """The axes over which the gradient of one micro-batch, before any reduction, is a partial sum.

    - cp, because each rank has only its part of the sequence;
    - tp with sequence parallelism, for parameters that are whole on every tp rank (Megatron's
      attribute `sequence_parallel`);
    - pp for parameters with a copy on two stages (Megatron's attribute `shared_embedding`);
    - the axes in the annotation `gradient_partial`, such as tp for a norm over each rank's own
      attention heads.
    """
    axes = ["cp"] if point.size("cp") > 1 else []
    declared = annotations.gradient_partial(name)
    marked = getattr(parameter, "sequence_parallel", False) or annotations.sequence_parallel(name)
    if (marked and point.get("sp", False)) or "tp" in declared:
        axes.append("tp")
    if getattr(parameter, "shared_embedding", False) or "pp" in declared:
        axes.append("pp")
    return tuple(axis for axis in axes if point.size(axis) > 1)


def contradictions(
    parameters: Mapping[str, Any], point: Point, annotations: Annotations
) -> Iterator[str]:
    """Yields a message for each annotation of a parameter that contradicts the layout in use.

    Such an annotation has no effect; the user has to decide which of the two is right.
    """
    for name, parameter in parameters.items():
        axes = _axes(name, parameter, point, annotations)
        layout, source = _cut(name, parameter, point, annotations, axes)
        if source not in ("dtensor", "attribute"):
            continue
        annotated = annotations.parameter(name, point, _shape(parameter), axes)
        if annotated is None or annotated[0] == layout:
            continue
        used = "DTensor placements" if source == "dtensor" else "attributes"
        yield (
            f"the annotation {annotated[1]} says that {name} is {describe(annotated[0])}, but the "
            f"parameter's {used} say {describe(layout)}; the annotation is not used"
        )


def summed(layout: Layout, axes: tuple[str, ...], mesh: Mesh) -> Layout:
    """The layout with a partial sum added for each of `axes` that it does not use yet.

    Ranks of tp or pp that hold the same slices may each hold a term of them, as those do that
    share a head of keys: a sum over these axes is never assumed, only declared.
    """
    known = mesh.expand(
        axis
        for placement in layout
        for axis in axes_of(placement)
        if not (isinstance(placement, Slices) and axis in GRADIENT_AXES)
    )
    terms: list[str] = []
    for axis in axes:
        members = mesh.members(axis)
        left = [name for name in members if name not in known]
        terms += [axis] if len(left) == len(members) else left
    return layout + tuple(Partial(axis) for axis in terms)
