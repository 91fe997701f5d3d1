"""Relations are declared in YAML, read strictly, and every mistake is named."""

import pytest

from pytest_trainsafe.judges.refine.errors import InputRelationError
from pytest_trainsafe.judges.refine.graphs.fx_text import parse_fx
from pytest_trainsafe.judges.refine.problem.declared import read_declaration, stated_problem
from tests.support.refine.graphs import RANK, RELATION, SEQUENTIAL

INPUTS: dict[str, str] = {"x, ids": "replica", "up": "concat 1", "down": "concat 0"}
GRAPHS = (parse_fx(SEQUENTIAL), [parse_fx(RANK), parse_fx(RANK)])


def problem(**changes):
    return stated_problem(*GRAPHS, RELATION | changes)


def test_lists_and_ranges_of_names_and_defaults_are_read(tmp_path):
    text = "def forward(self, " + ", ".join(f'x_{n}: "f32[2]"' for n in range(9)) + "):\n"
    text += "    return (x_0,)\n"
    graph = parse_fx(text)
    (tmp_path / "relation.yaml").write_text(
        "inputs:\n  x_0, x_1: replica\n  x_2 .. x_6: the same on every rank\n"
        "  x_7: concat 0 of x_7, x_8\n  x_8: replica of x_0\n"
    )
    declared = read_declaration(tmp_path / "relation.yaml")
    found = stated_problem(graph, [graph], declared)
    assert [str(found.inputs[f"x_{n}"]) for n in (0, 5, 7)] == [
        "replica of x_0",
        "replica of x_5",
        "concat 0 of x_7, x_8",
    ]
    assert dict(found.mesh.axes) == {"ranks": 1}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"inputs": {"x, x": "replica"}}, "has x twice"),
        ({"inputs": {"x_1 .. x_999999": "replica"}}, "no range of names"),
        ({"inputs": {"x_5 .. y_7": "replica"}}, "no range of names"),
        ({"inputs": {"x": 5}}, "not a relation's text"),
        ({"inputs": ["x"]}, "give a mapping"),
        ({"inputs": {"z": "replica"}}, "has no tensor z; its inputs: "),
        ({"inputs": INPUTS | {"up": "concat 1 of z, up"}}, "no graph of a rank has"),
        ({"mesh": {"tp": 0}}, "has the size 0"),
        ({"mesh": {"tp": 3}}, "has 3 ranks"),
        ({"groups": {"0": "dp"}}, "no axis of the mesh"),
        ({"groups": {"0": [[0], [0]]}}, "each of the 2 ranks once"),
        ({"groups": {"0": 5}}, "give an axis"),
        ({"constants": {"c": "x"}}, "give a number"),
        ({"below": {"ids": 0}}, "give an integer > 0"),
        ({"inputs": INPUTS | {"up": "concat 1 order 0 0"}}, "not one of 2 ranks"),
        ({"inputs": INPUTS | {"up": "sum over tp, concat 1 over tp"}}, "twice"),
        ({"inputs": INPUTS | {"up": "at tp=5"}}, "no 5"),
    ],
)
def test_a_mistake_is_named(changes, said):
    with pytest.raises(InputRelationError, match=said):
        problem(**changes)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[1]", "no mapping"),
        ("a: [", "no YAML"),
        ("!!python/object/apply:os.system ['true']", "no YAML"),
        ("[" * 5000, "no YAML"),
    ],
)
def test_a_file_that_is_no_declaration_is_refused(tmp_path, text, said):
    (tmp_path / "relation.yaml").write_text(text)
    with pytest.raises(InputRelationError, match=said):
        read_declaration(tmp_path / "relation.yaml")
    with pytest.raises(InputRelationError, match="cannot be read"):
        read_declaration(tmp_path / "missing.yaml")
