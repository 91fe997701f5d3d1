"""Relations of all tensors are found, and a fault is named at the first operator it changes."""

import pytest

from pytest_trainsafe.judges.refine.certificate.checker import check
from pytest_trainsafe.judges.refine.certificate.write import certificate_of
from pytest_trainsafe.judges.refine.errors import CannotSayError
from pytest_trainsafe.judges.refine.graphs.fx_text import parse_fx
from pytest_trainsafe.judges.refine.problem.declared import stated_problem
from pytest_trainsafe.judges.refine.prove import Proof, Refutation, prove
from tests.support.refine.graphs import RANK, SEQUENTIAL, mlp


def said(relations):
    return {name: [str(each) for each in found] for name, found in relations.items()}


def test_every_tensor_of_a_correct_mlp_has_a_relation():
    proof = prove(mlp())
    assert isinstance(proof, Proof)
    assert proof.missing == ()
    found = said(proof.relations)
    assert found["mm"] == ["concat 1 over tp of mm"]
    assert found["mm_1"] == ["replica of all_reduce", "replica of wait", "sum over tp of mm_1"]
    assert found["index"] == ["replica of index"]
    assert proof.error < 1e-9
    assert proof.met["_c10d_functional.all_reduce"] == 1


UNREDUCED = RANK.replace("add.Tensor(x, wait)", "add.Tensor(x, mm_1)")

TWICE = RANK.replace("(mm_1, 'sum'", "(mm_2, 'sum'").replace(
    "        all_reduce:",
    "        mm_2 = torch.ops.aten.add.Tensor(mm_1, x)\n        all_reduce:",
)

FAULTS = {
    "missing all-reduce": (UNREDUCED, "add"),
    "wrong operator": (RANK.replace("gelu", "relu"), "gelu"),
    "other gelu": (RANK.replace("(mm)", "(mm, approximate = 'tanh')"), "gelu"),
    "scaled": (RANK.replace("add.Tensor(x, wait)", "add.Tensor(x, wait, alpha = 0.5)"), "add"),
    "residual counted twice": (TWICE, "mm_1"),
    "average": (RANK.replace("'sum'", "'avg'"), "mm_1"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_refuted_at_its_operator(name):
    text, operator = FAULTS[name]
    found = prove(mlp(text, text))
    assert isinstance(found, Refutation)
    # The sum of what the ranks hold is a relation still, of the product that is never reduced.
    assert found.node.name in (operator, "add")
    assert found.wrong == ("index",)
    assert set(said({key: (each,) for key, each in found.inputs.items()})) <= {"x", "mm", "mm_1"}


def test_a_missing_all_reduce_is_said():
    found = prove(mlp(UNREDUCED, UNREDUCED))
    assert isinstance(found, Refutation)
    assert found.unreduced is not None
    name, relation = found.unreduced
    assert (name, str(relation)) == ("mm_1", "sum over tp of mm_1")


def test_a_sum_of_two_micro_batches_that_is_not_scaled_is_said_with_its_factor():
    sequential = parse_fx(
        'def forward(self, x: "f32[6]"):\n'
        '    mul: "f32[6]" = torch.ops.aten.mul.Tensor(x, x)\n'
        '    mean: "f32[]" = torch.ops.aten.mean.default(mul)\n'
        "    return (mean,)\n"
    )
    ranks = parse_fx(
        'def forward(self, x: "f32[3]", y: "f32[3]"):\n'
        "    mul = torch.ops.aten.mul.Tensor(x, x)\n"
        "    mean = torch.ops.aten.mean.default(mul)\n"
        "    mul_1 = torch.ops.aten.mul.Tensor(y, y)\n"
        "    mean_1 = torch.ops.aten.mean.default(mul_1)\n"
        "    add = torch.ops.aten.add.Tensor(mean, mean_1)\n"
        "    return (add,)\n"
    )
    found = prove(stated_problem(sequential, [ranks], {"inputs": {"x": "concat 0 of x, y"}}))
    assert isinstance(found, Refutation)
    assert found.node.name == "mean"
    assert str(found.inputs["mul"]) == "concat 0 of mul, mul_1"
    assert found.nearest is not None
    assert str(found.nearest.factor) == "1/2"
    assert found.nearest.relation.names == ("add",)


def test_a_result_that_only_sums_up_to_the_right_one_is_no_proof_unless_it_is_expected():
    sequential = SEQUENTIAL.replace("return (index,)", "return (mm_1,)")
    rank = RANK.replace("return (index,)", "return (mm_1,)")
    graphs = [parse_fx(rank), parse_fx(rank)]
    relation = {
        "mesh": {"tp": 2},
        "inputs": {"x, ids": "replica", "up": "concat 1", "down": "concat 0"},
    }
    found = prove(stated_problem(parse_fx(sequential), graphs, relation))
    assert isinstance(found, Refutation)
    assert found.node.name == "mm_1"
    assert found.relation is not None
    expected = relation | {"outputs": {"mm_1": "sum"}}
    assert isinstance(prove(stated_problem(parse_fx(sequential), graphs, expected)), Proof)


def test_a_result_that_is_right_on_some_ranks_alone_is_no_proof_unless_it_is_expected():
    """Replicas that take different steps drift apart, although one of them is right."""
    step = 'def forward(self, w: "f32[4]"):\n    mul = torch.ops.aten.mul.Tensor(w, {rate})\n'
    texts = [step.format(rate=rate) + "    return (mul,)\n" for rate in ("0.5", "0.5", "0.25")]
    sequential, right, wrong = map(parse_fx, texts)
    inputs = {"mesh": {"dp": 2}, "inputs": {"w": "replica"}}
    assert isinstance(prove(stated_problem(sequential, [right, right], inputs)), Proof)
    found = prove(stated_problem(sequential, [right, wrong], inputs))
    assert isinstance(found, Refutation)
    assert str(found.relation) == "at dp=0 of mul"
    assert str(found.expected) == "a replica or a concat of mul"
    known = {**inputs, "outputs": {"mul": "at dp=0"}}
    assert isinstance(prove(stated_problem(sequential, [right, wrong], known)), Proof)


def test_an_identity_that_exact_numbers_do_not_know_is_no_refutation():
    """log(exp(x) * y) is x + log(y), which residues do not know."""
    sequential = parse_fx(
        'def forward(self, x: "f32[3]"):\n'
        "    exp = torch.ops.aten.exp.default(x)\n"
        "    mul = torch.ops.aten.mul.Tensor(exp, 2)\n"
        "    log = torch.ops.aten.log.default(mul)\n    return (log,)\n"
    )
    rank = parse_fx(
        'def forward(self, x: "f32[3]"):\n'
        "    add = torch.ops.aten.add.Tensor(x, 0.6931471805599453)\n    return (add,)\n"
    )
    with pytest.raises(CannotSayError, match="equals that of graph in float64"):
        prove(stated_problem(sequential, [rank], None))


def test_relations_of_inputs_are_proposed_from_names_and_shapes():
    proof = prove(mlp(inputs={}, propose=True))
    assert isinstance(proof, Proof)
    assert str(proof.problem.inputs["up"]) == "concat 1 over tp of up"


PART = {
    "mesh": {"tp": 2},
    "partial": True,
    "inputs": {"x": "replica", "gelu": "concat 1", "down": "concat 0"},
    "outputs": {"add": "replica"},
}


def part(rank, **changes):
    graphs = [parse_fx(rank, f"rank{number}.txt") for number in (0, 1)]
    return stated_problem(parse_fx(SEQUENTIAL), graphs, PART | changes)


def test_a_part_of_a_graph_is_judged_from_the_tensors_that_are_given():
    given = part(RANK)
    proof = prove(given)
    assert isinstance(proof, Proof)
    assert set(proof.relations) == {
        "x", "down", "gelu", "mm_1", "add", "_softmax", "view"
    }  # fmt: skip
    certificate = certificate_of(proof, given, 0)
    assert any("taken as given" in each for each in certificate.assumed)
    assert check(certificate, given.sequential, given.ranks, seed=4) > 7
    found = prove(part(UNREDUCED))
    assert isinstance(found, Refutation)
    assert found.node.name == "add"


def test_a_result_that_depends_on_unknown_inputs_is_no_proof():
    with pytest.raises(CannotSayError, match="index depends on inputs without a relation"):
        prove(part(RANK, outputs={"index": "replica"}))


def test_integers_of_inputs_that_are_equal_by_chance_are_not_related():
    names = ["a", "b", "c", "d", "e"]  # Two numbers, drawn twice, are the same for two of five.
    given = ", ".join(f'{name}: "i64[1]"' for name in names)
    text = f"""
    def forward(self, x: "f32[4]", {given}):
        neg: "f32[4]" = torch.ops.aten.neg.default(x)
        return (neg,)
    """
    graph = parse_fx(text)
    inputs = dict.fromkeys(["x", *names], "replica")
    proof = prove(stated_problem(graph, [graph, graph], {"inputs": inputs}))
    assert isinstance(proof, Proof)
    found = said(proof.relations)
    assert {name: found[name] for name in names} == {name: [f"replica of {name}"] for name in names}


def of_integers(body):
    return parse_fx(
        'def forward(self, x: "f32[4]", n: "i64[4]"):\n'
        + "".join(f"    {line}\n" for line in body)
        + "    return (mul,)\n"
    )


@pytest.mark.parametrize(
    "other",
    [
        ["square = torch.ops.aten.mul.Tensor(n, n)", "mul = torch.ops.aten.mul.Tensor(x, square)"],
        ["ne = torch.ops.aten.ne.Scalar(n, 0)", "mul = torch.ops.aten.mul.Tensor(x, ne)"],
        ["add = torch.ops.aten.add.Tensor(x, 0)", "mul = torch.ops.aten.mul.Tensor(add, 1)"],
    ],
    ids=["square", "mask", "ignored"],
)
def test_integers_without_a_bound_are_not_drawn_from_zero_and_one_alone(other):
    """Where they are, each of these equals x * n, or does in a draw without zeros."""
    plain = of_integers(['mul: "f32[4]" = torch.ops.aten.mul.Tensor(x, n)'])
    relation = {"mesh": {"tp": 2}, "inputs": {"x, n": "replica"}, "outputs": {"mul": "replica"}}
    right = prove(stated_problem(plain, [plain, plain], relation))
    wrong = prove(stated_problem(plain, [of_integers(other)] * 2, relation))
    assert isinstance(right, Proof)
    assert isinstance(wrong, Refutation)
    assert (wrong.node.name, wrong.wrong) == ("mul", ("mul",))
