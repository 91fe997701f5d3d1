"""The functions that a line calls are found in its file, and in those that it imports."""

from __future__ import annotations

from pathlib import Path

from pytest_trainsafe.report.called import called_at

CALLING = """
def whole(layers):
    return layers


class Model:
    def __init__(self):
        self.stages = [
            Stage(part(n), self.named(n)) for n in range(2)
        ]
        self.size = 1

    def named(self, n):
        return whole(n)


def part(n):
    return n


class Ring(Function):
    @staticmethod
    def forward(ctx, x):
        return part(x)

    @staticmethod
    def backward(ctx, x):
        return x


class Attention:
    def forward(self, x):
        return Ring.apply(x)
"""


def test_the_functions_of_a_file_that_a_line_calls_are_found_and_those_that_these_call(
    tmp_path: Path,
) -> None:
    path = tmp_path / "calling.py"
    path.write_text(CALLING)
    lines = CALLING.splitlines()

    def at(line: str) -> str:
        return f"{path}:{lines.index(line) + 1}"

    called = [at("def part(n):"), at("    def named(self, n):"), at("def whole(layers):")]
    for number in (8, 9, 10):
        assert [*called_at(f"{path}:{number}")] == called
    ring = at("    def forward(ctx, x):"), at("def part(n):")
    assert [*called_at(at("    def forward(self, x):"))] == [*ring]
    assert [*called_at(at("    def forward(self, x):"), "backward")] == [
        at("    def backward(ctx, x):")
    ]
    for nothing in ("11", "2", "6", "99", "x"):
        assert [*called_at(f"{path}:{nothing}")] == []
    assert [*called_at("")] == []
    assert [*called_at("no/such/file.py:1")] == []


def test_the_hooks_that_a_constructor_registers_are_found_at_each_of_its_lines(
    tmp_path: Path,
) -> None:
    path = tmp_path / "hooks.py"
    path.write_text(
        "class Sharded(Adam):\n    def __init__(self):\n        super().__init__()\n"
        "        self.register_step_post_hook(self._gather)\n\n"
        "    def _gather(self, *_):\n        self.gathers = {}\n"
    )
    assert [*called_at(f"{path}:3")] == [f"{path}:6"]
    assert [*called_at(f"{path}:7")] == []


def test_a_function_that_a_file_imports_is_found_in_the_folders_around_it(tmp_path: Path) -> None:
    files = {
        "nets/training/loop.py": "from nets.routing import update as change\n"
        "from ..routing import Sum\nfrom .missing import other\nimport os\n\n"
        "change(Sum.apply(1))\nother()\nos.getcwd()\n",
        "nets/routing.py": "from nets.training.loop import change as circular\ncircular()\n\n"
        "def update(x):\n    return _own(x)\n\n\ndef _own(x):\n    return x\n\n\n"
        "class Sum(Function):\n    def forward(ctx, x):\n        return x\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    loop, routing = (tmp_path / name for name in files)

    assert [*called_at(f"{loop}:6")] == [f"{routing}:4", f"{routing}:13", f"{routing}:8"]
    assert called_at(f"{loop}:7") == called_at(f"{loop}:8") == {}
    # Two files that import a name from each other have it in neither.
    (tmp_path / "nets/training/loop.py").write_text(
        "from nets.routing import circular\ncircular()\n"
    )
    assert [*called_at(f"{routing}:2")] == []


FLOWING = """
def forward(x):
    helper(x)
    scale = scale_of(x)
    y = first(x)
    y.mul_(scale)
    return last(y)


def helper(x):
    return x


def scale_of(x):
    return x


def first(x):
    return x


def last(y):
    return y
"""


def test_functions_whose_results_reach_what_is_returned_most_directly_come_first(
    tmp_path: Path,
) -> None:
    path = tmp_path / "flowing.py"
    path.write_text(FLOWING)
    lines = FLOWING.splitlines()
    called = [lines[int(each.rpartition(":")[2]) - 1] for each in called_at(f"{path}:2")]
    assert called == [
        f"def {each}:" for each in ("last(y)", "first(x)", "scale_of(x)", "helper(x)")
    ]


NESTED = """
def forward(x):
    x = prepare(x)
    y = ring(x)
    return y


def prepare(x):
    return aligned(x)


def aligned(x):
    return x


def ring(x):
    scores = score(x)
    weights = scores * 2
    mixed = weights + 1
    return mixed


def score(x):
    return x
"""


def test_what_the_nearest_function_calls_comes_before_what_makes_its_arguments(
    tmp_path: Path,
) -> None:
    path = tmp_path / "nested.py"
    path.write_text(NESTED)
    lines = NESTED.splitlines()
    called = [lines[int(each.rpartition(":")[2]) - 1] for each in called_at(f"{path}:2")]
    assert called == [f"def {each}(x):" for each in ("ring", "score", "prepare", "aligned")]
