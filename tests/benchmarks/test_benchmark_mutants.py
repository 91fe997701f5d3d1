"""Mutations change one piece of code each, never docstrings, and depend only on the seed."""

from __future__ import annotations

from pathlib import Path

import pytest

SOURCE = '''"""A module."""
from torch import Tensor


def forward(tensor: Tensor, axes: Axes, planted: bool = False) -> Tensor:
    """Sum 1 and 2."""
    assert tensor.ndim == 2
    if axes.planted("a-bug"):
        return tensor * 3
    if axes.tp.size > 1 and axes.sp:
        tensor = all_reduce(tensor, axes.tp)
    if tensor is None:
        raise ValueError("not 1")
    axes.done += 1
    return tensor[axes.rank : axes.end] * 0.5
'''


def changes(kind: str) -> set[tuple[str, str]]:
    from _mutants import mutations_of

    return {(each.before, each.after) for each in mutations_of(SOURCE, "a.py") if each.kind == kind}


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("drop a collective", {("all_reduce(tensor, axes.tp)", "tensor")}),
        (
            "double a collective",
            {
                (
                    "all_reduce(tensor, axes.tp)",
                    "all_reduce(all_reduce(tensor, axes.tp), axes.tp)",
                )
            },
        ),
        (
            "reduce op",
            {
                (
                    "all_reduce(tensor, axes.tp)",
                    'all_reduce(tensor, axes.tp, __import__("torch").distributed.ReduceOp.MAX)',
                )
            },
        ),
        ("another group", {("axes.tp", "axes.cp")}),
        (
            "condition",
            {
                ("axes.tp.size > 1", "axes.tp.size >= 1"),
                ("tensor is None", "tensor is not None"),
                ("axes.tp.size > 1 and axes.sp", "(axes.tp.size > 1) or (axes.sp)"),
            },
        ),
        (
            "branch",
            {
                ("axes.tp.size > 1 and axes.sp", "True"),
                ("axes.tp.size > 1 and axes.sp", "False"),
                ("tensor is None", "True"),
                ("tensor is None", "False"),
            },
        ),
        (
            "drop a statement",
            {("tensor = all_reduce(tensor, axes.tp)", "pass"), ("axes.done += 1", "pass")},
        ),
        (
            "slice",
            {
                ("axes.rank", "axes.rank + 1"),
                ("axes.end", "axes.end + 1"),
                ("axes.rank : axes.end", ":axes.end"),
            },
        ),
        (
            "constant",
            {("1", "2"), ("1", "(0)"), ("0.5", "(0.5 * 2)"), ("False", "True")},
        ),
    ],
)
def test_each_kind_of_mutation_makes_the_expected_changes(
    kind: str, expected: set[tuple[str, str]]
) -> None:
    assert changes(kind) == expected


def test_a_mutation_changes_only_its_own_text_and_no_line_numbers() -> None:
    from _mutants import mutations_of

    for each in mutations_of(SOURCE, "a.py"):
        mutated = each.applied(SOURCE)
        assert mutated != SOURCE
        assert mutated.startswith(SOURCE[: each.start] + each.after)
        assert mutated.endswith(SOURCE[each.end :])
        assert mutated.count("\n") == SOURCE.count("\n")
        compile(mutated, "a.py", "exec")


def test_names_of_mutations_are_unique_and_independent_of_the_position_in_the_file() -> None:
    from _mutants import mutations_of

    names = [each.id for each in mutations_of(SOURCE, "a.py")]
    moved = [each.id for each in mutations_of(f"\n\n{SOURCE}", "a.py")]

    assert len(set(names)) == len(names)
    assert moved == names


def test_a_longer_sample_begins_with_the_shorter_sample_of_the_same_seed(tmp_path: Path) -> None:
    from _mutants import mutations, sample

    for name in ("a.py", "b.py", "c.py"):
        (tmp_path / name).write_text(SOURCE)
    found = mutations(tmp_path)

    short, longer = sample(found, 20, seed=1), sample(found, 40, seed=1)

    assert longer[:20] == short
    assert sample(found, 20, seed=2) != short
    assert {each.file for each in short[:3]} == {"a.py", "b.py", "c.py"}


def test_a_copy_of_the_models_does_not_import_the_originals() -> None:
    from _mutant_packages import MODELS, relative, sources

    texts = [
        relative(file.read_text(encoding="utf-8"), file.relative_to(MODELS).parent)
        for file in sources()
        if file.suffix == ".py" and not file.name.startswith("deepspeed")
    ]

    assert len(texts) > 50
    lines = [line for text in texts for line in text.splitlines() if " import " in line]
    assert [line for line in lines if "pytest_trainsafe.reference_models" in line] == []
    assert "from .parallel.axes import Axes" in "\n".join(lines)
    assert "from ..config import AnyConfig, fc1_blocks" in "\n".join(lines)
    assert "from ...config import ExpertsConfig, fc1_blocks" in "\n".join(lines)


REPORT = """trainsafe: gpt.train at tp=2 differs from its single-device reference

  starts at     fc.weight · param_grad
  detail        see parallel/other.py:3
  reduced by    all_reduce over dp, at
                {folder}/parallel/caller.py:3
  look at       {folder}/parallel/{looked}
"""


@pytest.mark.parametrize(
    ("looked", "word"),
    [("tensor/linear.py:1 (module class Copy)", "file"), ("caller.py:3", "caller")],
)
def test_reports_are_classified_by_whether_they_name_the_mutated_file_or_its_caller(
    tmp_path: Path, looked: str, word: str
) -> None:
    from _mutant_blame import named, places
    from _mutants import Mutation

    (tmp_path / "parallel").mkdir()
    (tmp_path / "parallel" / "caller.py").write_text("\n\ndef run():\n    copy_into(1)\n")
    (tmp_path / "parallel" / "alone.py").write_text("\n\ndef run():\n    return 1\n")
    mutation = Mutation("tensor/linear.py", "copy_into", "constant", "1", "2", 0, 1, range(1, 2))
    report = REPORT.format(folder=tmp_path, looked=looked)

    assert len(places(report)) == 2
    assert named(report, tmp_path, mutation) == word
    assert named(report.replace("caller.py:3", "alone.py:3"), tmp_path, mutation) == (
        "file" if word == "file" else "other"
    )
    assert named("  starts at  x.py:1", tmp_path, mutation) == "nothing"


def test_names_of_mutations_do_not_depend_on_the_folder_of_the_file(tmp_path: Path) -> None:
    from _mutants import mutations

    (tmp_path / "flat").mkdir()
    (tmp_path / "flat" / "a.py").write_text(SOURCE)
    (tmp_path / "deep" / "below").mkdir(parents=True)
    (tmp_path / "deep" / "below" / "a.py").write_text(SOURCE)
    flat, deep = mutations(tmp_path / "flat"), mutations(tmp_path / "deep")

    assert [each.id for each in flat] == [each.id for each in deep]
    assert {each.file for each in deep} == {"below/a.py"}
