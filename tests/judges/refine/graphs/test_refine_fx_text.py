"""The text of a torch.fx graph is parsed, never executed, and anything unknown is refused."""

import time

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from pytest_trainsafe.judges.refine.errors import GraphError
from pytest_trainsafe.judges.refine.graphs.fx_text import MAX_STATEMENT, parse_fx, read_fx
from pytest_trainsafe.judges.refine.graphs.graph import Ref

HEADER = 'class GraphModule(torch.nn.Module):\n    def forward(self, x: "f32[2, 3]"):\n'


def graph(body):
    lines = "".join(f"        {line}\n" for line in body)
    return parse_fx(HEADER + lines, "given.txt")


def test_nodes_keep_operators_arguments_shapes_and_lines_of_the_program():
    found = graph(
        [
            "# File: model.py:7 in forward, code: y = x * 2",
            'mul: "f32[2, 3]" = torch.ops.aten.mul.Tensor(x, -2.5);  x = None',
            "split = torch.ops.aten.split.Tensor(mul, 1, dim = 1)",
            'getitem: "f32[2, 1]" = split[0];  split = mul = None',
            "return (getitem, None)",
        ]
    )
    assert [node.operator for node in found.nodes] == [
        "input", "aten.mul.Tensor", "aten.split.Tensor", "getitem",
    ]  # fmt: skip
    assert found.by_name["mul"].args == (Ref("x"), -2.5)
    assert found.by_name["mul"].source == "model.py:7"
    assert found.by_name["split"].kwargs == {"dim": 1}
    assert found.by_name["x"].shape == (2, 3)
    assert found.outputs == ("getitem", None)


def test_what_torch_prints_of_a_traced_function_is_read():
    def step(x, w):
        return torch.nn.functional.layer_norm(x @ w, [4]).split(2, 1)[0].to(torch.bfloat16)

    module = make_fx(step)(torch.ones(2, 3), torch.ones(3, 4))
    text = module.print_readable(print_output=False)
    found = parse_fx(text)
    assert [node.operator for node in found.inputs] == ["input", "input"]
    assert {"aten.mm.default", "aten.native_layer_norm.default"} <= {
        node.operator for node in found.nodes
    }


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("y = __import__('os').system('true')", "a call of something unnamed"),
        ("y = open('/etc/passwd')", "a call of open"),
        ("y = torch.load('x.pt')", "a call of torch.load"),
        ("y = torch.ops.aten.mul.Tensor(x, (lambda: 2)())", "Call"),
        ("y = torch.ops.aten.mul.Tensor(x, [a for a in ()])", "ListComp"),
        ("y = torch.ops.aten.mul.Tensor(x, f'{x}')", "JoinedStr"),
        ("y = torch.ops.aten.mul.Tensor(x, 9 ** 9 ** 9)", "BinOp"),
        ("y = torch.ops.aten.mul.Tensor(x, torch.os.sys)", "attribute"),
        ("y = torch.ops.aten.mul.Tensor(*x)", "Starred"),
        ("y = torch.ops.aten.mul.Tensor(x, b'2')", "bytes"),
        ("y = torch.ops.aten.mul.Tensor(x, 99999999999999999999999)", "of this size"),
        ("y = torch.ops.aten.mul.Tensor(z, 2)", "the name z"),
        ("y = x.__class__", "attribute"),
        ("import os", "Import"),
        ("exec('1')", "a call of exec"),
        ("while True: pass", "While"),
        ("y = x[x]", "an index"),
        ("def inner(): pass", "FunctionDef"),
        ("y = (", "not a statement"),
        ('y: "tensor" = torch.ops.aten.neg.default(x)', "annotation"),
    ],
)
def test_what_no_graph_has_is_refused_with_its_line(line, said):
    with pytest.raises(GraphError, match=r"given\.txt:4") as raised:
        graph(["# a comment", line, "return (x,)"])
    assert said in str(raised.value)


def test_graphs_that_do_not_end_or_define_twice_are_refused():
    with pytest.raises(GraphError, match="truncated"):
        graph(["y = torch.ops.aten.neg.default(x)"])
    with pytest.raises(GraphError, match="defined twice"):
        graph(["x = torch.ops.aten.neg.default(x)", "return (x,)"])
    with pytest.raises(GraphError, match="no function"):
        parse_fx("import torch\n")
    with pytest.raises(GraphError, match="before the function"):
        parse_fx("import os\ndef forward(self, x):\n    return (x,)\n")
    with pytest.raises(GraphError, match="after `return`"):
        graph(["return (x,)", "y = torch.ops.aten.neg.default(x)"])


@pytest.mark.parametrize(
    "text",
    [
        HEADER + "        y = " + "(" * 100_000,
        HEADER + "        y = " + "-" * 20_000 + "1",
        HEADER + "        y = torch.ops.aten.neg.default(" + "x, " * MAX_STATEMENT,
        HEADER.replace("):\n", "") * 1000,
        "def forward(self, " + ", ".join(f"a{i}" for i in range(5_000)) + "):\n  return (b,)",
        "\x00" * 1000,
        "\n" * 100_000,
    ],
)
def test_hostile_texts_are_refused_soon(text):
    start = time.process_time()
    with pytest.raises(GraphError):
        parse_fx(text)
    assert time.process_time() - start < 5


def test_files_that_are_no_texts_are_refused(tmp_path):
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x80")
    with pytest.raises(GraphError, match="not a text"):
        read_fx(tmp_path / "binary")
    with pytest.raises(GraphError, match="cannot be read"):
        read_fx(tmp_path / "missing")
    with pytest.raises(GraphError, match="not a regular file"):
        read_fx(tmp_path)


def test_the_digest_depends_on_every_argument_and_not_on_comments():
    lines = ["y = torch.ops.aten.mul.Tensor(x, 2)", "return (y,)"]
    plain = graph(lines)
    assert graph(["# a comment", *lines]).digest == plain.digest
    for old, new in [("2)", "2.0)"), ("2)", "3)"), ("mul", "add"), ("y", "z")]:
        assert graph([line.replace(old, new) for line in lines]).digest != plain.digest
