"""Every option and its ini key: both are checked, and the command line wins."""

import os
import subprocess
import sys

import pytest

from pytest_trainsafe.config.settings import Settings

pytestmark = pytest.mark.usefixtures("without_hypothesis")

SHOW = """
    import pytest

    @pytest.mark.trainsafe("program:train", tp=1)
    def test_show(trainsafe):
        assert trainsafe.settings.{field} == {value!r}
"""

#: Option, the field it sets, a word and its value, another word and its value.
CASES = [
    ("max-world-size", "max_world_size", "4", 4, "2", 2),
    ("dtype", "dtypes", "float64,float32", ("float64", "float32"), "auto", ()),
    ("device", "device", "cpu", "cpu", "auto", "auto"),
    ("launcher", "launcher", "torchrun", "torchrun", "warm", "warm"),
    ("network", "network", "host", "host", "auto", "auto"),
    ("timeout", "timeout", "20", 20.0, "1.5", 1.5),
    ("seed", "seed", "3", 3, "4", 4),
    ("accept", "accept", "moved", ("moved",), "moved, dropout", ("moved", "dropout")),
    ("record", "record", "sketch", "sketch", "full", "full"),
    ("record-kinds", "record_kinds", "loss", ("loss",), "param,loss", ("param", "loss")),
    ("record-modules", "record_modules", "layers.*", ("layers.*",), "a,b", ("a", "b")),
    ("keep-traces", "keep_traces", "one", "one", "two", "two"),
    ("report", "report", "one", "one", "two", "two"),
    ("slots", "slots", "3", 3, "4", 4),
    ("rng", "rng", "off", False, "on", True),
    ("localize", "localize", "off", 0.0, "20", 20.0),
    ("cache-size", "cache_size", "1.5 GB", 1_500_000_000, "20mb", 20_000_000),
    ("cache-inputs", "cache_inputs", "$A", ("$A",), "$A,/data/*", ("$A", "/data/*")),
]


@pytest.mark.parametrize(("option", "field", "first", "a", "second", "b"), CASES)
def test_an_option_has_an_ini_key_and_overrides_it(
    project, write_ini, option, field, first, a, second, b
):
    write_ini(f"trainsafe_{option.replace('-', '_')} = {first}")
    project.makepyfile(test_ini=SHOW.format(field=field, value=a))
    project.makepyfile(test_cli=SHOW.format(field=field, value=b))

    project.runpytest_inprocess("test_ini.py").assert_outcomes(passed=1)
    project.runpytest_inprocess("test_cli.py", f"--trainsafe-{option}", second).assert_outcomes(
        passed=1
    )


@pytest.mark.parametrize(
    ("option", "word", "message"),
    [
        ("max-world-size", "0", "takes an integer >= 1, not '0'"),
        (
            "dtype",
            "float8",
            "takes one of float64, float32, bfloat16, float16, exact, not 'float8'*",
        ),
        ("dtype", "float64,,float32", "takes a comma-separated list, and *has an empty entry"),
        ("dtype", "float64,float64", "lists an entry twice: float64,float64"),
        ("launcher", "mpirun", "takes one of auto, warm, torchrun, threads, not 'mpirun'*"),
        ("device", "gpu", "takes one of auto, cpu, cuda, not 'gpu'*"),
        ("network", "none", "takes one of auto, private, host, not 'none'*"),
        ("slots", "0", "takes an integer >= 1, not '0'"),
        ("cache-size", "big", "takes a size such as 500MB or 2GB, not 'big'"),
        ("timeout", "soon", "takes a positive number of seconds, not 'soon'"),
        ("localize", "soon", "takes a number of seconds, or off, not 'soon'"),
        ("localize", "-1", "takes a number of seconds, or off, not '-1'"),
        ("timeout", "nan", "takes a positive number of seconds, not 'nan'"),
        ("seed", "-1", "takes an integer from 0 to 2[*][*]32 - 1, not '-1'"),
        ("accept", "droput", "takes some of *, not 'droput'; did you mean 'dropout'?"),
        ("record", "all", "takes one of sketch, full, not 'all'*"),
        ("record-kinds", "grads", "takes one of input, activation, *grad_norm, not 'grads'*"),
        ("record-kinds", "loss,update", "takes kinds of recorded tensors*Use param and*"),
    ],
)
def test_an_invalid_value_is_a_usage_error_that_says_what_is_allowed(
    pytester, option, word, message
):
    result = pytester.runpytest_inprocess(f"--trainsafe-{option}={word}")

    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: --trainsafe-{option} {message}"])


def test_the_error_of_an_invalid_value_in_the_ini_file_names_its_key(pytester):
    pytester.makeini("[pytest]\ntrainsafe_device = gpu\n")

    result = pytester.runpytest_inprocess()

    result.stderr.fnmatch_lines(["ERROR: trainsafe_device (ini) takes one of auto, cpu, cuda, *"])


def test_the_header_shows_the_options_that_were_set(swept):
    result = swept.runpytest_inprocess(
        *[
            "--trainsafe-device",
            "cpu",
            "--trainsafe-sweep",
            "tp=1,2",
            "cp=1",
            "--trainsafe-seed",
            "3",
        ]
    )

    result.stdout.fnmatch_lines(["trainsafe: device cpu, seed 3", "trainsafe sweep: tp=1,2 cp=1"])


def test_settings_are_plain_data():
    import pickle

    settings = Settings(sweep=(("tp", ("1",)),))

    assert pickle.loads(pickle.dumps(settings)) == settings  # noqa: S301  # our own bytes


@pytest.mark.parametrize("where", ["TMPDIR", "--basetemp"])
def test_a_temporary_folder_whose_path_is_not_utf8_is_one_usage_error(
    swept, tmp_path, monkeypatch, where
):
    folder = os.fsdecode(os.fsencode(tmp_path) + b"/\xff")
    os.mkdir(folder)
    command = [sys.executable, "-m", "pytest"]
    if where == "TMPDIR":
        monkeypatch.setenv("TMPDIR", folder)
    else:
        command.append(f"--basetemp={folder}/x")
    # A process of its own: pytester's runs have a --basetemp already.
    done = subprocess.run(command, capture_output=True, check=False)
    errors = done.stderr.decode("utf-8", "replace")
    assert done.returncode == pytest.ExitCode.USAGE_ERROR, done.stdout
    assert errors.count(f"{where} is ") == errors.count("which is not UTF-8") == 1
