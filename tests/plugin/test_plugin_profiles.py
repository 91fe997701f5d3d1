"""`--trainsafe-profile` sets options under a name: built-in ones, and the project's own."""

import pytest

from pytest_trainsafe.config.profiles import BUILT_IN, declared_profiles, parse_profile
from pytest_trainsafe.config.read import read_settings, sweep_words
from pytest_trainsafe.config.settings import WORKER_SWEEP
from pytest_trainsafe.errors import SettingError


@pytest.fixture
def settings(project, write_ini):
    """The settings of a run: `settings("--trainsafe-profile=ci", "trainsafe_seed = 3")`."""

    def read(*given):
        write_ini(*(line for line in given if not line.startswith("--")))
        config = project.parseconfigure(*(word for word in given if word.startswith("--")))
        return read_settings(config)

    return read


OWN = """trainsafe_profiles =
    mine: record=sketch timeout=600 no-cache sweep='tp=1,2 cp=2'
    ci: seed=9"""


@pytest.mark.parametrize("name", BUILT_IN)
def test_a_built_in_profile_sets_its_declared_options(settings, name):
    found = settings(f"--trainsafe-profile={name}")

    words = dict(word.partition("=")[::2] for word in BUILT_IN[name][0].split())
    assert found.profile == name
    for option, text in words.items():
        value = getattr(found, option.replace("-", "_"))
        assert value is True if not text else str(value) in (text, f"{text}.0")


def test_a_project_profile_is_selected_on_the_command_line_or_in_the_ini_file(settings):
    chosen = settings(OWN, "--trainsafe-profile=mine")

    # The command line is repeated by `rerun`, and the ini file need not be.
    assert chosen._replace(rerun="") == settings(OWN, "trainsafe_profile = mine")
    assert (chosen.record, chosen.timeout, chosen.no_cache) == ("sketch", 600.0, True)
    assert (chosen.sweep, chosen.sweep_from_ini) == ((("tp", ("1", "2")), ("cp", ("2",))), True)


def test_a_project_profile_replaces_the_built_in_one_of_the_same_name(settings):
    found = settings(OWN, "--trainsafe-profile=ci")

    assert (found.seed, found.timeout) == (9, 300.0)  # not the built-in one's 900


def test_the_command_line_overrides_the_profile_which_overrides_the_ini_file(settings):
    ini = "trainsafe_timeout = 5", "trainsafe_seed = 4"
    found = settings(OWN, *ini, "--trainsafe-profile=mine", "--trainsafe-record=full")

    assert (found.record, found.timeout, found.seed) == ("full", 600.0, 4)
    assert settings(OWN, *ini, "--trainsafe-profile=mine", "--trainsafe-timeout=7").timeout == 7
    assert settings(OWN, "--trainsafe-profile=mine", "--trainsafe-sweep=tp=4").sweep == (
        ("tp", ("4",)),
    )


def test_a_marker_overrides_the_profile(project, write_ini):
    write_ini(OWN)
    project.makepyfile(
        test_it="""
        import pytest

        @pytest.mark.trainsafe("program:train", tp=[1], cp=[1], timeout=5)
        def test_it(trainsafe):
            assert trainsafe.point.size("cp") == 2  # the profile's sweep, for an axis it declares
            assert (trainsafe.settings.timeout, trainsafe.settings.record) == (5.0, "sketch")
        """
    )

    result = project.runpytest_inprocess("--trainsafe-profile=mine")

    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(
        [
            "trainsafe: timeout 600, record sketch, no-cache, profile mine",
            "trainsafe sweep: tp=1,2 cp=2",
        ]
    )


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (
            ["mine record=full"],
            "trainsafe_profiles .ini. takes lines of a name and settings, such as 'mine",
        ),
        (
            ["mine: recrod=full"],
            "the profile mine sets 'recrod', which is no option of a",
        ),
        (["mine: profile=ci"], "the profile mine sets 'profile', which is no option of a profile"),
        (["mine: seed=1 seed=2"], "the profile mine sets seed twice"),
        (["mine: seed"], "the profile mine: seed needs a value: seed=..."),
        (
            ["mine: no-cache=maybe"],
            "no-cache takes true, false, or no value, which means true; not 'maybe'",
        ),
        (["mine: sweep='tp=1"], "the profile mine cannot be read: No closing quotation"),
        (["mine: seed=1", "mine: seed=2"], "has the profile 'mine' twice"),
    ],
)
def test_an_invalid_profile_declaration_is_an_error(lines, message):
    with pytest.raises(SettingError, match=message):
        declared_profiles(lines)


def test_a_flag_in_a_profile_is_true_without_a_value_and_can_be_off():
    assert parse_profile("mine", "no_cache --trainsafe-seed=3") == {"no-cache": "true", "seed": "3"}
    assert parse_profile("mine", "no-cache=off annotate=Yes") == {
        "no-cache": "",
        "annotate": "true",
    }


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("nigthly", "--trainsafe-profile takes one of dev, ci, nightly, mine, not 'nigthly'; did*"),
        ("mine", "seed of the profile mine takes an integer from 0 to 2[*][*]32 - 1, not 'x'"),
    ],
)
def test_an_unknown_profile_or_an_invalid_value_in_a_profile_is_a_usage_error(
    project, write_ini, word, message
):
    write_ini("trainsafe_profiles = mine: seed=x")

    result = project.runpytest_inprocess(f"--trainsafe-profile={word}")

    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: {message}"])


def test_xdist_workers_have_the_profile_and_the_sweep_of_their_controller(project, write_ini):
    write_ini(OWN)
    config = project.parseconfigure("--trainsafe-profile=mine")
    whole = read_settings(config)
    words, from_ini = sweep_words(config)
    config.workerinput = {WORKER_SWEEP: {"words": words, "from_ini": from_ini}}

    assert read_settings(config) == whole
    assert (whole.profile, dict(whole.sweep)["tp"]) == ("mine", ("1", "2"))
