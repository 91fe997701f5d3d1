"""`assert_refines` returns a certificate or raises; the command exits accordingly."""

import pytest
import yaml

import pytest_trainsafe
from pytest_trainsafe import ArgumentError, TrainsafeFailure, assert_refines
from pytest_trainsafe.__main__ import main
from pytest_trainsafe.judges.refine.certificate.content import read_certificate
from pytest_trainsafe.judges.refine.errors import GraphError, InputRelationError
from tests.support.refine.graphs import RANK, RELATION, SEQUENTIAL

UNREDUCED = RANK.replace("add.Tensor(x, wait)", "add.Tensor(x, mm_1)")


def test_a_correct_graph_gives_a_certificate():
    assert "assert_refines" in pytest_trainsafe.__all__
    certificate = assert_refines(SEQUENTIAL, [RANK, RANK], RELATION)
    assert certificate.outputs == {"index": "replica of index"}
    proposed = assert_refines(SEQUENTIAL, [RANK, RANK])
    assert proposed.inputs["down"] == "concat 0 over ranks of down"


def test_a_missing_all_reduce_is_a_finding_with_the_pattern_of_the_compare_judge():
    with pytest.raises(TrainsafeFailure) as raised:
        assert_refines(SEQUENTIAL, [UNREDUCED, UNREDUCED], RELATION)
    (finding,) = raised.value.findings
    assert (finding.verdict, finding.judge, finding.check) == ("fail", "refine", "refine:relation")
    assert str(finding.subject) == "aten.add at mlp.py:5"
    assert finding.source == "mlp.py:5"
    assert finding.pattern is not None
    assert (finding.pattern.name, finding.pattern.axis) == ("partial sum", "tp")
    report = str(raised.value)
    assert "mm_1 equals the sum over tp of mm_1" in report
    assert "an all-reduce over tp is missing" in report
    assert "gelu" not in report
    assert raised.value.line.startswith("aten.add at mlp.py:5")


EARLY = RANK.replace("all_reduce.default(mm_1", "all_reduce.default(early").replace(
    "        all_reduce:",
    '        early: "f32[4, 6]" = torch.ops.aten.add.Tensor(x, mm_1)\n        all_reduce:',
)
EARLY = EARLY.replace("add.Tensor(x, wait)", "clone.default(wait)")


def test_what_each_rank_adds_before_the_all_reduce_is_not_told_as_a_missing_all_reduce():
    with pytest.raises(TrainsafeFailure) as raised:
        assert_refines(SEQUENTIAL, [EARLY, EARLY], RELATION)
    (finding,) = raised.value.findings
    assert finding.pattern is not None
    assert finding.pattern.cause == (
        "each rank applies aten.add to its own term, before the all-reduce over tp: what it adds "
        "there is added by every rank"
    )
    assert "is missing" not in finding.pattern.cause
    assert (finding.pattern.name, finding.pattern.axis) == ("partial sum", "tp")


COPIED = EARLY.replace("all_reduce.default(early", "all_reduce.default(copy").replace(
    "        all_reduce:",
    '        copy: "f32[4, 6]" = torch.ops.aten.clone.default(early)\n        all_reduce:',
)
SCALED = RANK.replace("all_reduce.default(mm_1", "all_reduce.default(scaled").replace(
    "        all_reduce:",
    '        scaled: "f32[4, 6]" = torch.ops.aten.mul.Tensor(mm_1, 0.3)\n        all_reduce:',
)


HALVED = SEQUENTIAL.replace(
    "        add:",
    '        half: "f32[4, 6]" = torch.ops.aten.mul.Tensor(mm_1, 0.5)\n        add:',
).replace("add.Tensor(x, mm_1)", "add.Tensor(x, half)")


@pytest.mark.parametrize(
    ("sequential", "ranks", "cause"),
    [
        (
            *(SEQUENTIAL, [COPIED, COPIED]),
            "each rank applies aten.add to its own term, before the all-reduce over tp",
        ),
        # The two ranks scale otherwise, so that no one factor mends the sum.
        (
            *(HALVED, [SCALED, SCALED.replace("0.3", "0.4")]),
            "adds the terms up, but they are scaled before it",
        ),
    ],
    ids=["copied", "scaled"],
)
def test_an_all_reduce_of_terms_that_are_changed_before_it_is_not_told_as_missing(
    sequential: str, ranks: list[str], cause: str
) -> None:
    with pytest.raises(TrainsafeFailure) as raised:
        assert_refines(sequential, ranks, RELATION)
    (finding,) = raised.value.findings
    assert finding.pattern is not None
    assert cause in finding.pattern.cause
    assert "is missing" not in finding.pattern.cause


def test_a_wrong_scale_is_a_finding_with_its_factor():
    sequential = SEQUENTIAL.replace("return (index,)", "return (mm_1,)")
    rank = RANK.replace("'sum'", "'avg'").replace("return (index,)", "return (wait,)")
    relation = RELATION | {"outputs": {"mm_1": "replica of wait"}}
    with pytest.raises(TrainsafeFailure) as raised:
        assert_refines(sequential, [rank, rank], relation)
    (finding,) = raised.value.findings
    assert "mm_1 is sum over tp of mm_1, not replica of wait" in finding.message


def test_an_operator_without_semantics_is_inconclusive():
    unknown = RANK.replace("aten.gelu", "mylib.gelu")
    with pytest.raises(TrainsafeFailure, match=r"mylib\.gelu") as raised:
        assert_refines(SEQUENTIAL, [unknown, unknown], RELATION)
    (finding,) = raised.value.findings
    assert finding.verdict == "inconclusive"
    assert str(finding.subject) == "mylib.gelu"


def test_wrong_arguments_are_named():
    with pytest.raises(ArgumentError, match="list of the ranks' graphs"):
        assert_refines(SEQUENTIAL, RANK)
    with pytest.raises(ArgumentError, match="the sequential graph is 5"):
        assert_refines(5, [RANK])
    with pytest.raises(InputRelationError, match="has 2 ranks"):
        assert_refines(SEQUENTIAL, [RANK], RELATION)
    with pytest.raises(InputRelationError, match="no key size"):
        assert_refines(SEQUENTIAL, [RANK, RANK], RELATION | {"size": 2})
    inputs = {"x": "replica", "up": "concat 1", "down": "concat 0"}
    with pytest.raises(InputRelationError, match="says nothing of the input ids"):
        assert_refines(SEQUENTIAL, [RANK, RANK], RELATION | {"inputs": inputs})
    with pytest.raises(GraphError, match="cannot be read"):
        assert_refines("missing.txt", [RANK])


@pytest.fixture
def files(tmp_path):
    (tmp_path / "sequential.txt").write_text(SEQUENTIAL)
    (tmp_path / "rank.txt").write_text(RANK)
    (tmp_path / "wrong.txt").write_text(UNREDUCED)
    (tmp_path / "unknown.txt").write_text(RANK.replace("aten.gelu", "mylib.gelu"))
    (tmp_path / "relation.yaml").write_text(yaml.safe_dump(RELATION))
    return tmp_path


def run(files, rank, *options):
    graphs = [str(files / name) for name in ("sequential.txt", rank, rank)]
    return main(["refine", *graphs, "--relation", str(files / "relation.yaml"), *options])


def test_the_command_proves_and_checks(files, capsys):
    certificate = files / "certificate.json"
    assert run(files, "rank.txt", "--certificate", str(certificate)) == 0
    assert "index: replica of index" in capsys.readouterr().out
    assert read_certificate(certificate).error < 1e-9
    assert run(files, "rank.txt", "--check", str(certificate)) == 0
    assert "the certificate holds" in capsys.readouterr().out
    assert run(files, "wrong.txt", "--check", str(certificate)) == 2
    certificate.write_text(certificate.read_text().replace("gelu", "relu"))
    assert run(files, "rank.txt", "--check", str(certificate)) == 2


@pytest.mark.parametrize(("rank", "status"), [("wrong.txt", 1), ("unknown.txt", 2), ("no.txt", 2)])
def test_the_command_exits_with_the_verdict(files, rank, status, capsys):
    assert run(files, rank) == status


def test_an_unknown_command_is_refused(capsys):
    assert main(["prove"]) == 2
    assert main([]) == 2
    assert "refine" in capsys.readouterr().err


AVERAGE = """
class GraphModule(torch.nn.Module):
    def forward(self, x: "f32[{rows}, 3]"):
        mean: "f32[3]" = torch.ops.aten.mean.dim(x, [0])
        return (mean,)
"""


def test_a_missing_average_is_named():
    rank = AVERAGE.format(rows=2)
    relation = {"mesh": {"dp": 2}, "inputs": {"x": "concat 0"}}
    with pytest.raises(TrainsafeFailure) as raised:
        assert_refines(AVERAGE.format(rows=4), [rank, rank], relation)
    assert "mean equals 1/2 times the sum over dp of mean" in str(raised.value)
    assert "an average over dp is missing" in str(raised.value)
