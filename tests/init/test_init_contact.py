"""The checklist of a program and its first test, from a real training."""

import shutil
from pathlib import Path

import pytest

from pytest_trainsafe.core.pages import page

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "own_model"
QUICK = ("--trainsafe-dtype", "float64", "--trainsafe-localize", "off")

#: By default torchrun starts a script, which takes seconds of CPU.
FORKED = ("--trainsafe-launcher", "warm")


def test_a_clean_program_lacks_nothing_and_its_test_passes(folder, own_model, first, rows_of):
    shutil.copy(EXAMPLE / "layouts.yaml", own_model)
    layouts = (own_model / "layouts.yaml").read_bytes()

    result = first("own_model.train:train")

    found = rows_of(result)
    assert result.ret == 0
    assert {text.partition(" ")[0] for text in found.values()} == {"ok"}
    assert found["context"].startswith("ok takes ctx; calls ctx.watch at own_model/train.py:")
    assert found["model"].startswith("ok 15 parameters (")
    assert found["steps"] == "ok 2 steps, 4 micro-batches in each"
    assert found["data"].startswith("ok int64 [2, 8]; drawn at own_model/train.py:")
    assert found["axes"] == "ok dp (ctx.group, ctx.microbatches), tp (ctx.group)"
    assert found["dp=2"] == found["tp=2"] == "ok trains like one device"
    assert (own_model / "layouts.yaml").read_bytes() == layouts
    wrote = ["wrote own_model/test_train.py", "  pytest own_model/test_train.py", "*no tests ran*"]
    result.stdout.fnmatch_lines(wrote)
    result.stdout.no_fnmatch_line("*--trainsafe-annotate*")

    passed = folder.runpytest_inprocess(
        "own_model/test_train.py", *QUICK, "-k", "tp2-dp1 or dp2-tp1"
    )
    passed.assert_outcomes(passed=1, deselected=3)


def test_layouts_that_a_program_does_not_pass_are_named_and_written(own_model, first, rows_of):
    file = own_model / "train.py"
    file.write_text(file.read_text().replace(", annotations=LAYOUTS", ""))
    file.with_name("test_train.py").write_text("mine\n")

    result = first("own_model.train:train")

    found = rows_of(result)
    assert result.ret == 1
    assert found["dp=2"] == "ok trains like one device"
    assert found["tp=2"].startswith(
        "lacks layouts are missing for 6 parameters: blocks.0.up.weight"
    )
    assert "annotations=LAYOUTS in ctx.initialize and ctx.watch" in found["tp=2"]
    assert "--trainsafe-annotate, which adds the layouts of modules" in found["tp=2"]
    assert f"see: {page('layouts.md#annotations-are-proposed')}" in found["tp=2"]
    assert "up.weight: {tp_dim: 0}" in (own_model / "layouts.yaml").read_text()
    assert file.with_name("test_train.py").read_text() == "mine\n"
    result.stdout.fnmatch_lines(
        [
            "own_model/test_train.py is not written, because it exists already; it would be:",
            "    @pytest.mark.trainsafe(train, dp=*1, 2*, tp=*1, 2*)",
            "wrote own_model/layouts.yaml",
            "next:",
            "  do what the rows marked lacks say (tp=2), *",
            "  pytest own_model/test_train.py --trainsafe-annotate *",
            "  a test with assert_same_by for faults at every Point: *metamorphic.md",
        ]
    )


def test_a_layout_file_that_a_program_names_is_made_and_filled(own_model, first, rows_of):
    result = first("own_model.train:train")

    found = rows_of(result)
    assert result.ret == 0
    assert found["tp=2"] == (
        "ok trains like one device, with the layouts that own_model/layouts.yaml now has"
    )
    text = (own_model / "layouts.yaml").read_text()
    assert "activation: {output: {tp_dim: -1}}" in text


@pytest.mark.slow
def test_a_script_in_another_folder_gets_a_test_beside_it(folder, first, rows_of, plain):
    script = folder.path / "runs" / "pretrain.py"
    script.parent.mkdir()
    script.write_text(f"{plain}\nimport pytest_trainsafe\ntrain(pytest_trainsafe.context())\n")

    result = first("runs/pretrain.py")

    assert result.ret == 0
    context = rows_of(result)["context"]
    assert context.startswith("ok gets its context from pytest_trainsafe.context(); calls ctx.wat")
    text = script.with_name("test_pretrain.py").read_text()
    assert 'Script(str(Path(__file__).with_name("pretrain.py"))), dp=[1, 2]' in text


def test_a_missing_reduction_is_said_of_the_axis_that_needs_it(folder, first, rows_of, plain):
    line = '                dist.all_reduce(parameter.grad, group=ctx.group("dp"))'
    assert line in plain
    folder.makepyfile(forgetful=plain.replace(line, "                pass"))

    result = first("forgetful:train")

    found = rows_of(result)
    assert result.ret == 1
    assert found["dp=2"].startswith("lacks differs from one device: ")
    assert "an all-reduce over dp is missing" in found["dp=2"]
    assert (folder.path / "test_forgetful.py").exists()


@pytest.mark.parametrize("declared", ["", "loss"])
def test_a_mean_that_is_not_declared_is_to_be_added_and_a_wrong_one_to_be_changed(
    declared, folder, first, rows_of, plain
):
    """The reduction averages over dp; the loss is a mean too, or is only declared to be one."""
    gradients = '"gradients": {"mean": ["dp"]}'
    of_rank = ".pow(2).mean() / 4"
    text = plain.replace(of_rank, f'{of_rank} * ctx.point.size("dp")')
    reduced = '                dist.all_reduce(parameter.grad, group=ctx.group("dp"))\n'
    text = text.replace(
        reduced, reduced + '                parameter.grad /= ctx.point.size("dp")\n'
    )
    means = f'{{{gradients}, "loss": {{"mean": ["dp"]}}}}' if declared else f"{{{gradients}}}"
    if declared:
        text = text.replace("ctx.loss(loss)", 'ctx.loss(loss / ctx.point.size("dp"))')
    text = text.replace("watch(model, optimizer)", f"watch(model, optimizer, annotations={means})")
    folder.makepyfile(averaging=text)

    found = rows_of(first("averaging:train"))

    assert "every tensor matches its reference" in found["dp=2"]
    verb = "change" if declared else "add"
    assert f"to do: {verb} this declaration, or correct the code" in found["dp=2"]


def test_an_axis_over_the_ranks_of_others_is_tried_itself_on_the_ranks_of_one(
    folder, first, rows_of, plain
):
    line = "    for step in range(2):"
    assert line in plain
    folder.makepyfile(experts=plain.replace(line, f'    ctx.group("ep")\n{line}'))

    found = rows_of(first("experts:train"))

    assert found["axes"] == "ok dp (ctx.group, ctx.microbatches), ep (ctx.group)"
    assert found["dp=2"] == "ok trains like one device"
    # The program divides no experts.
    assert found["ep=2"].startswith("lacks at dp=2 ep=2: is inconclusive: ")
    assert "cp=2" not in found
    assert "train, dp=[1, 2], ep=[1, 2])" in (folder.path / "test_experts.py").read_text()


def test_each_thing_that_a_program_lacks_has_a_row_with_what_to_write(folder, first, rows_of):
    folder.makepyfile(
        bare="""
        import torch

        def train(ctx):
            model = torch.nn.Linear(4, 1).float()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            ctx.watch(model)
            with ctx.step():
                x = torch.randn(2, 4, dtype=torch.float32)
                model(x).sum().backward()
                optimizer.step()
        """
    )

    result = first("bare:train")

    found = rows_of(result)
    assert result.ret == 1
    for label, part in {
        "model": "ctx.watch(model, optimizer)",
        "steps": "with ctx.microbatch(index)",
        "losses": "ctx.loss(loss)",
        "dtype": "model.to(ctx.device, ctx.dtype)",
        "axes": "ctx.microbatches(total)",
    }.items():
        assert found[label].startswith("lacks "), found[label]
        assert part in found[label].partition(" to do: ")[2]
        assert f"see: {page('')}" in found[label]
    assert "@pytest.mark.trainsafe(train, dp=[1, 2])" in (folder.path / "test_bare.py").read_text()


def test_unseeded_data_are_said_to_differ_when_the_program_is_trained_again(
    folder, first, rows_of, plain
):
    seed = ".manual_seed(10 * step + index)"
    assert seed in plain
    system = ".manual_seed(int.from_bytes(__import__('os').urandom(4)))"
    folder.makepyfile(unseeded=plain.replace(seed, system))

    found = rows_of(first("unseeded:train"))

    assert found["deterministic"].startswith("lacks no: trained again, the program ")
    assert "docs/programs.md#random-numbers" in found["deterministic"]


def test_values_that_ranks_would_draw_apart_are_lacking_if_they_hold_parts(
    own_model, first, rows_of
):
    file = own_model / "train.py"
    text = file.read_text().replace("    ctx.initialize(model, annotations=LAYOUTS)\n", "")
    file.write_text(
        text.replace("Model(", "reset(Model(").replace('group("tp"))', 'group("tp")))')
        + (
            "\n\ndef reset(model):\n"
            "    for parameter in model.parameters():\n"
            "        nn.init.normal_(parameter, std=0.1)\n"
            "    return model\n"
        )
    )

    found = rows_of(first("own_model.train:train"))

    assert found["first values"].startswith("lacks depend on the seed: ranks of tp")
    assert "ctx.initialize(model)" in found["first values"]


def test_ranks_that_the_program_seeds_apart_are_said_of_their_axis(folder, first, rows_of, plain):
    start = "    model = torch.nn.Linear"
    seeded = f'    torch.manual_seed(3 + ctx.coordinates["dp"])\n{start}'
    folder.makepyfile(seeded=plain.replace(start, seeded))

    found = rows_of(first("seeded:train"))

    hidden = "note trains like one device; ctx.initialize hides that the program itself starts "
    assert found["dp=2"].startswith(f"{hidden}ranks 0, 1 of dp with different copies of weight")
    assert "seed 3, and rank 1 from torch cpu, seed 4" in found["dp=2"]


@pytest.mark.parametrize(
    ("body", "parts"),
    [
        ("return ctx.hidden", ["AttributeError: 'Context' object has no attribute 'hidden'"]),
        (
            "ctx.seed",
            ["never called ctx.step", "wrap each optimizer step", "ctx.loss(loss) in each"],
        ),
        (
            "with ctx.step(): pass",
            ["ctx.step was entered before ctx.watch was called; call ctx.watch(model, optimizer)"],
        ),
    ],
)
def test_a_program_that_does_not_train_is_said_to_and_nothing_is_written(
    folder, first, body, parts
):
    folder.makepyfile(odd=f"def train(ctx):\n    {body}\n")

    result = first("odd:train")

    text = " ".join(result.stdout.str().split())
    assert result.ret == 1
    assert all(part in text for part in [*parts, "no file is written until the program trains"])
    assert not (folder.path / "test_odd.py").exists()


def test_a_script_without_steps_is_told_how_to_get_a_context(folder, first):
    folder.makepyfile(pretrain="def train(ctx):\n    pass\n")

    result = first("pretrain.py", *FORKED)

    text = " ".join(result.stdout.str().split())
    assert result.ret == 1
    assert "ProgramError: pretrain.py never called ctx.step" in text
    assert "a script gets ctx by `ctx = pytest_trainsafe.context()`" in text
    assert "to train a function of this file, give pretrain:FUNCTION instead" in text


def test_a_function_of_a_file_in_a_package_is_named_from_above_the_package(folder, first):
    package = folder.path / "src" / "tpblock"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "pretrain.py").write_text("def train(ctx):\n    pass\n")

    text = " ".join(first("src/tpblock/pretrain.py", *FORKED).stdout.str().split())

    assert "to train a function of this file, give tpblock.pretrain:FUNCTION instead" in text


def test_a_first_parameter_of_another_name_is_said_to_receive_the_context(folder, first):
    folder.makepyfile(odd="def train(config):\n    return config.hidden\n")

    result = first("odd:train")

    assert result.ret == 1
    result.stdout.fnmatch_lines(["*first parameter of odd.train, config, receives the context*"])
    result.stdout.fnmatch_lines(["*return config.hidden"])
