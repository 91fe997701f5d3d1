"""The mesh that a program declares: its axes, its effect on a sweep, and mistakes in it."""

from __future__ import annotations

import re

import pytest

from pytest_trainsafe import Mesh, Point, on_mesh
from pytest_trainsafe.config.settings import Settings
from pytest_trainsafe.core.axes import AXES
from pytest_trainsafe.core.mesh import DEFAULT, TAKEN
from pytest_trainsafe.core.point import MESH_AXES
from pytest_trainsafe.errors import SweepError
from pytest_trainsafe.launch import Script
from pytest_trainsafe.sweep.marker import read_marker
from pytest_trainsafe.sweep.product import cells
from pytest_trainsafe.sweep.signature import SETTING_WORDS
from pytest_trainsafe.sweep.traits import traits_of
from pytest_trainsafe.sweep.validity import divides, requires

ROLES = {"dp_replicate": "dp", "dp_shard": "dp"}
HYBRID = Mesh(
    *("stage", "dp_replicate", "dp_shard", "tp"),
    roles={**ROLES, "stage": "pp"},
    overlaps={"ep": ("dp_shard",), "etp": ("dp_shard", "tp")},
)


@on_mesh(HYBRID)
@requires(divides("heads", "dp", "tp"))
def train(ctx, heads=8, dp_shard=1):
    """A program that also takes one of its axes as an argument."""


def made(**axes):
    return cells(read_marker((train,), axes), Settings(), lambda point, arguments: None)


def test_the_world_size_is_the_product_of_the_mesh_axes():
    (cell,) = made(dp_replicate=2, dp_shard=2, tp=2, dtype="float64")

    point = cell.case.point
    assert (point.world_size, point.size("dp"), point.size("pp")) == (8, 4, 1)
    assert cell.id == "dpreplicate2-dpshard2-tp2-float64"


def test_axes_of_the_mesh_are_arguments_of_the_candidate_and_not_of_the_reference():
    (cell,) = made(dp_shard=2, tp=2, ep=2)

    assert cell.case.candidate_arguments == {"dp_shard": 2}
    assert cell.case.arguments == {}
    assert cell.case.reference_point == Point.of(mesh=HYBRID)


def test_a_pipelined_reference_uses_the_mesh_axis_with_the_role_pp():
    declared = read_marker((train,), {"stage": 4, "reference": {"pp": 2}})
    (cell,) = cells(declared, Settings(), lambda point, arguments: None)

    assert cell.case.reference_point == Point.of(mesh=HYBRID, stage=2)


def test_rules_may_name_axes_of_the_mesh_and_roles():
    reasons = [cell.invalid for cell in made(dp_replicate=[2, 3], dp_shard=2)]

    assert reasons == [None, "heads=8 is not divisible by dp*tp=6"]


def test_an_overlapping_axis_must_divide_the_axes_that_it_overlaps():
    reasons = [cell.invalid for cell in made(dp_replicate=2, dp_shard=2, ep=[1, 2, 4])]

    assert reasons == [None, None, "ep=4 does not divide dp_shard=2"]


def test_a_script_takes_its_mesh_from_the_marker(tmp_path):
    script = tmp_path / "train.py"
    script.touch()
    mesh = Mesh("tp", "dp")
    declared = read_marker((Script(str(script)),), {"mesh": mesh, "dp": 2})

    assert declared.program.traits.mesh == mesh


def test_a_program_without_a_declaration_has_the_default_mesh():
    def plain(ctx):
        pass

    assert traits_of(plain).mesh == DEFAULT
    assert DEFAULT.fastest_first == MESH_AXES == ("tp", "cp", "dp", "pp")


def test_a_mesh_is_restored_from_its_plain_data():
    assert Mesh.of(HYBRID.declared) == HYBRID
    assert DEFAULT.declared == ()
    assert Mesh.of(()) is DEFAULT


def test_names_of_axes_and_settings_are_reserved_except_those_of_mesh_axes():
    assert {*AXES, *SETTING_WORDS} - TAKEN == {*MESH_AXES, "ep"}


@pytest.mark.parametrize(
    ("axes", "keywords", "words"),
    [
        ((), {}, "Mesh() has no axes"),
        (("dp", "tp", "dp"), {}, "the axis 'dp' is declared twice"),
        (("data",), {}, "the axis 'data' has no role; give roles={'data': ...}, one of 'dp' ("),
        (
            ("data",),
            {"roles": {"data": "rows"}},
            "'data' has the unknown role 'rows'; the roles are dp, cp",
        ),
        (("data",), {"roles": {"date": "dp"}}, "roles has the key 'date', which is not one of"),
        (("tp",), {"roles": {"tp": "dp"}}, "the axis 'tp' is named after a role"),
        (("dp", "dp_shard"), {"roles": ROLES}, "roles has the key 'dp_replicate', which is"),
        (("dp", "rows"), {"roles": {"rows": "dp"}}, "'dp' has the name of its role"),
        (("dp", "zero"), {}, "'zero' is already the name of an axis or a"),
        (("dp", "ep"), {}, "name those axes in overlaps={'ep': ('dp', 'cp')}"),
        (("dp", "two words"), {}, "'two words' is not the name of an axis"),
        (("dp", 3), {}, "3 is not the name of an axis"),
        (("dp",), {"overlaps": {"ep": ("cp",)}}, "'ep' overlaps 'cp', which is not a mesh axis"),
        (("dp",), {"overlaps": {"ep": "dp"}}, "overlaps['ep'] takes a tuple of the mesh axes"),
        (
            ("dp",),
            {"overlaps": {"tp": ("dp",)}},
            "has the axis 'tp', which is the name of",
        ),
        (("dp",), {"overlaps": ["ep"]}, "overlaps takes a dict such as"),
        (tuple(f"a{number}" for number in range(17)), {}, "17 axes are too many"),
    ],
)
def test_an_invalid_mesh_is_refused(axes, keywords, words):
    with pytest.raises(SweepError, match=re.escape(words)):
        Mesh(*axes, **keywords)


@pytest.mark.parametrize(
    ("keywords", "words"),
    [
        ({"dp": 2}, "no axis 'dp'; its mesh axes are stage, dp_replicate, dp_shard, tp; axes of"),
        ({"cp": 2}, "the program's mesh has no axis 'cp'; its mesh axes are stage"),
        ({"dp_shards": 2}, "unknown axis 'dp_shards'; did you mean 'dp_shard'?"),
        ({"dp_shard": 0}, "axis 'dp_shard' takes an integer >= 1, not 0"),
        ({"mesh": "dp"}, "mesh takes a Mesh, such as Mesh('pp', 'dp', 'tp'), not 'dp'"),
        ({"reference": {"dp_shard": 2}}, None),
        ({"mesh": Mesh("dp"), "reference": {"pp": 2}}, "needs an axis with the role 'pp' in the"),
    ],
)
def test_a_marker_that_does_not_fit_the_mesh_of_its_program_is_refused(keywords, words):
    if words is None:  # it is a parameter of the program, too
        assert read_marker((train,), keywords).reference_args == {"dp_shard": 2}
        return
    with pytest.raises(SweepError, match=re.escape(words)):
        read_marker((train,), keywords)


def test_on_mesh_refuses_an_argument_that_is_no_mesh():
    with pytest.raises(SweepError, match="on_mesh takes a Mesh"):
        on_mesh("dp")  # type: ignore[arg-type]


def test_an_invalid_mesh_is_a_collection_error(pytester):
    pytester.makepyfile(
        """
        import pytest
        from pytest_trainsafe import Mesh, on_mesh

        @on_mesh(Mesh("dp", "rows", roles={"rows": "dp"}))
        def train(ctx):
            pass

        @pytest.mark.trainsafe(train, rows=2)
        def test_it(candidate_trace):
            pass
        """
    )
    result = pytester.runpytest("--collect-only")

    result.stdout.fnmatch_lines(
        ["*SweepError: Mesh: the axis 'dp' has the name of its role*role of rows*"]
    )
    assert result.ret == pytest.ExitCode.INTERRUPTED
