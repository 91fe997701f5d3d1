"""Any annotation file, however malformed, gives annotations or an error with the reason."""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pytest_trainsafe.annotations.declared import Annotations
from pytest_trainsafe.annotations.entries import AnnotationError, Entries
from pytest_trainsafe.annotations.extend import extend
from pytest_trainsafe.annotations.parse import MAX_GLOBS, parse
from pytest_trainsafe.annotations.patterns import LastMatch, matches
from pytest_trainsafe.annotations.text import MAX_BYTES, MAX_NODES, load
from pytest_trainsafe.annotations.write import write_annotations
from pytest_trainsafe.core.point import Point

#: The maximum length of an error message, whatever it quotes.
LONGEST_MESSAGE = 1500
DIGITS = "9" * 5000


def bomb(levels: int) -> str:
    """A YAML bomb: a few hundred characters whose aliases expand to 9 ** levels values."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    for level in range(1, levels):
        lines.append(f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 9)}]")
    return "\n".join([*lines, f"parameters: *a{levels - 1}\n"])


def rows(*table: tuple[str, str]) -> list[Any]:
    """Test parameters whose ids are the expected messages, since the inputs are unfit as ids."""
    return [pytest.param(*row, id=re.sub(r"[^a-zA-Z0-9]+", "-", row[1])[:40]) for row in table]


def attempt(text: str) -> tuple[Entries | None, str]:
    """The entries of a text, or None and the message of its AnnotationError."""
    try:
        return Annotations.of_text(text, "layouts.yaml").entries, ""
    except AnnotationError as error:
        message = str(error)
    assert message.startswith("layouts.yaml: ")
    assert len(message) <= LONGEST_MESSAGE
    assert message.isprintable()
    return None, message


@pytest.mark.parametrize(
    ("text", "words"),
    rows(
        ("loss: {partial: [[dp]]}", "`loss: partial` is [['dp']]; it must be a list of tp, cp, dp"),
        ("gradients: {mean: [{a: b}]}", "`gradients: mean` is [{'a': 'b'}]"),
        ("modules: {a: {output: {local: [[tp]]}}}", "`modules: a: output` has `local: [['tp']]`"),
        ("modules: {a: {output: {local: 0}}}", "has `local: 0`; local must be a list"),
        ("modules: {a: {output: {local: [1]}}}", "has `local: [1]`; local must be a list"),
        ("modules: {a: {output: [1]}}", "modules: a: output is [1]; it must be a mapping"),
        ("modules: {a: 0}", "modules: a is 0; it must be a mapping"),
        ("parameters: 0", "parameters is 0; it must be a mapping"),
        ("parameters: []", "parameters is []; it must be a mapping"),
        ("loss: false", "loss is False; it must be a mapping"),
        ("[]", "the file is []; it must be a mapping"),
        ("0", "the file is 0; it must be a mapping"),
        ("cp_order: [zigzag]", "cp_order is ['zigzag']; it must be zigzag, contiguous or striped"),
        ("cp_order: {a: .nan}", "cp_order is {'a': nan}"),
        ("parameters: {a: {tp_dim: 1.0}}", "`tp_dim: 1.0`; tp_dim must be a dimension"),
        ("parameters: {a: {tp_dim: .inf}}", "`tp_dim: inf`; tp_dim must be a dimension"),
        ("parameters: {a: {tp_dim: 0x1}}", "`tp_dim: '0x1'`; tp_dim must be a dimension"),
        ("parameters: {a: {tp_dim: 65}}", "`tp_dim: 65`; tp_dim must be a dimension"),
        ("parameters: {a: {tp_dim: ٣}}", "`tp_dim: '٣'`; tp_dim must be a dimension"),
        (
            "parameters: {a: {tp_dim: 2001-02-30}}",
            "`tp_dim: '2001-02-30'`; tp_dim must be a dimension",
        ),
        ("parameters: {a: {tp_dim: 0, blocks: [true]}}", "blocks: [True]"),
        ("parameters: {a: {tp_dim: 0, blocks: 0}}", "`blocks: 0`; blocks must be a list"),
        ("parameters: {a: {tp_dim: 0, blocks: [9999999999999]}}", "blocks: [9999999999999]"),
        (f"parameters: {{a: {{tp_dim: {DIGITS}}}}}", "line 1: the number 999"),
        ("? [a]\n: {}", "line 1: ['a'] is used as a key; keys must be text"),
        ("1: 2\ntrue: 3", "the file has the key 1, which is not text; put it in quotes"),
        ("null: 2", "the file has the key None, which is not text; put it in quotes"),
        ("parameters:\n  'a b': {}\n\n  a b: {}", "'a b' appears twice (line 2 and line 4)"),
        ("a: 2001-02-30", "unknown key 'a'"),
        ("a: 0x_", "unknown key 'a'"),
        ("a: !!int abc", "line 1: found the tag 'tag:yaml.org,2002:int'"),
        ("a: !!bool zz", "line 1: found the tag 'tag:yaml.org,2002:bool'"),
        ("a: !!timestamp zz", "line 1: found the tag 'tag:yaml.org,2002:timestamp'"),
        ("a: !!binary zz", "line 1: found the tag 'tag:yaml.org,2002:binary'"),
        ("a: !!str zz", "line 1: found the tag 'tag:yaml.org,2002:str'"),
        ("a: !own [1]", "line 1: found the tag '!own'"),
        ("%TAG ! x\n---\na: 1", "%TAG declares a tag"),
        ("a: &x {}\n<<: *x", "line 2: merge keys (<<) are not supported"),
        ("a: &x [*x]", "line 1: the alias *x is inside its own anchor"),
        ("a: *x", "line 1: the alias *x has no anchor before it"),
        ("a: 1\n---\nb: 1", "line 2: a second document begins; an annotation file has only one"),
        ("[" * 3000, "line 1: it is nested more than 16 levels deep"),
        ("{a: " * 3000, "line 1: it is nested more than 16 levels deep"),
        ("- " * 3000, "line 1: it is nested more than 16 levels deep"),
        (
            "a: &a [[[[[[[[x]]]]]]]]\nb: [[[[[[[[*a]]]]]]]]",
            "line 2: it is nested more than 16 levels deep",
        ),
        (bomb(30), f"line 6: there are more than {MAX_NODES} keys and values"),
        ("parameters: [" + "x, " * MAX_NODES + "]", f"more than {MAX_NODES} keys and values"),
        ("a: \0", "not YAML"),
        ("a: \ud800", "not YAML"),
        ("a: \x1b[31m", "not YAML"),
        ("a: [", "not YAML"),
        ("\t", "not YAML"),
        ("parameters: {? " + "a" * 5000 + " : {}}", "a pattern has at most 1000 characters"),
    ),
)
def test_invalid_annotations_are_refused_with_their_line_or_entry(text: str, words: str) -> None:
    entries, message = attempt(text)

    assert entries is None
    assert words in message


def test_a_small_yaml_bomb_is_refused_with_a_short_message() -> None:
    entries, message = attempt(bomb(4))
    assert entries is None
    assert "unknown key 'a0'" in message

    entries, message = attempt(
        bomb(4).replace("a3: &a3", "parameters: &a3", 1).split("parameters: *")[0]
    )
    assert entries is None


def test_yaml_aliases_repeat_the_anchored_value() -> None:
    entries, _ = attempt(
        "parameters:\n  a: &qkv {tp_dim: 0, blocks: &sizes [4, 4]}\n  b: *qkv\n"
        "  c: {tp_dim: 1, blocks: *sizes}\n"
    )

    assert entries is not None
    assert [e.blocks for _, e in entries.parameters] == [(4, 4)] * 3


def test_a_byte_order_mark_and_windows_line_ends_are_accepted(tmp_path: Path) -> None:
    file = tmp_path / "layouts.yaml"
    file.write_bytes("\ufeffparameters:\r\n  a: {tp_dim: 0}\r\n".encode())

    assert [name for name, _ in Annotations.read(file).entries.parameters] == ["a"]


@pytest.mark.parametrize("kind", ["pipe", "folder", "device", "huge", "utf-16", "latin-1", "nul"])
def test_special_huge_and_non_utf8_files_are_refused(tmp_path: Path, kind: str) -> None:
    file = tmp_path / "layouts.yaml"
    if kind == "pipe":
        os.mkfifo(file)
    elif kind == "folder":
        file.mkdir()
    elif kind == "device":
        file.symlink_to("/dev/zero")
    elif kind == "huge":
        with file.open("wb") as sparse:
            sparse.truncate(MAX_BYTES + 1)
    elif kind == "utf-16":
        file.write_text("parameters: {}", encoding="utf-16")
    elif kind == "latin-1":
        file.write_bytes(b"# na\xefve\n")
    else:
        file = tmp_path / "a\0b"

    with pytest.raises(AnnotationError, match="annotations cannot be read: ") as caught:
        Annotations.read(file)

    assert str(caught.value).isprintable()


def test_an_invalid_file_is_not_changed_when_annotations_are_written(tmp_path: Path) -> None:
    wanted = {"parameters": {"a": {"tp_dim": 0}}}
    for content in (b"\xff", b"a: [", b"modules: &a\n  x: *a\n", b"[" * 5000, b"a: !!int x"):
        file = tmp_path / "layouts.yaml"
        file.write_bytes(content)

        done = write_annotations(wanted, str(file), "test_a.py::test_b", str(tmp_path))

        assert "could not be written" in done
        assert file.read_bytes() == content


def test_a_python_mapping_is_validated_like_a_file() -> None:
    endless: dict[str, Any] = {}
    endless["parameters"] = {"a": endless}
    for given_, words in (
        (endless, "unknown key 'parameters'"),
        ({"parameters": {"a": {"tp_dim": 10**5000}}}, "tp_dim: an integer of about 4983 digits"),
        ({"parameters": {"a": object()}}, "parameters: a is an object of type object"),
        ({"parameters": {("a",): {}}}, "parameters has the key ('a'), which is not text; put it"),
        ({"\x1b[31m": {}}, r"unknown key '\x1b[31m'"),
        ([], r"the file is []; it must be a mapping"),
    ):
        with pytest.raises(AnnotationError) as caught:
            Annotations.of(given_)  # type: ignore[arg-type]
        assert words in str(caught.value)


def test_twenty_thousand_names_are_read_and_looked_up() -> None:
    names = [f"layers.{number}.weight" for number in range(20_000)]
    text = "parameters:\n" + "".join(f"  {name}: {{tp_dim: 0}}\n" for name in names)
    annotations = Annotations.of_text(text, "layouts.yaml")

    assert annotations.unmatched([f"model.{name}" for name in names[1:]], []) == [
        "parameters: layers.0.weight"
    ]


def test_patterns_with_wildcards_are_limited_in_number() -> None:
    globs = "".join(f"  '*.{number}': {{}}\n" for number in range(MAX_GLOBS + 1))
    assert f"at most {MAX_GLOBS} are allowed" in attempt("parameters:\n" + globs)[1]


def test_a_pathological_glob_pattern_does_not_hang_the_matcher() -> None:
    # A matcher that backtracks would need exponential time for these patterns.
    name = ".".join(["a" * 400] * 10)
    for pattern in ("*a" * 400 + "b", "*" * 900 + "b", "*[a-z]" * 150 + "b", "?*" * 400 + "b"):
        assert LastMatch("modules", [(pattern, None)]).find(name) is None


GLOBS = st.text(alphabet="ab.*?[]!-^\\", max_size=9)


@given(st.lists(GLOBS, max_size=6, unique=True), st.text(alphabet="ab.", max_size=9))
@settings(deadline=None)
def test_the_entry_found_is_the_last_whose_pattern_matches(patterns: list[str], name: str) -> None:
    section = LastMatch("modules", [(pattern, pattern) for pattern in patterns])
    matching = [pattern for pattern in patterns if matches(pattern, name)]

    assert section.find(name) == ((matching[-1], f"modules: {matching[-1]}") if matching else None)
    assert section.unmatched([name]) == [
        f"modules: {pattern}" for pattern in patterns if pattern not in matching
    ]


#: Words of the grammar, and scalars that crash a careless parser.
SCALARS = st.sampled_from(
    [
        *("0", "-1", "1", "64", "true", "no", "~", "", "zigzag", "dp", "tp", "cp", "sp", "ep", "x"),
        *(".nan", "-.inf", "1e5", "1.5", "0x_", "0x1", "010", "1_000", "1:30", "2001-02-30", "<<"),
        *("=", "!!int abc", "!!bool zz", "!!timestamp zz", "!", "!!python/name:os.system", "*a"),
        *("&a x", "'q", '"q"', "٣", DIGITS, "\0", "\ud800", "\x1b", "\ufeff", "\u2028", "- ", "? "),
    ]
)
KEYS = st.one_of(
    st.sampled_from(
        [
            *("cp_order", "loss", "gradients", "parameters", "modules", "partial", "mean", "local"),
            *("tp_dim", "sp_dim", "cp_dim", "tp_partial", "cp_partial", "blocks", "decision"),
            *("sequence_parallel", "expert_parallel", "output", "output.0", "output_grad", '"*"'),
            *("layers.*.fc", '"[a-"', "<<", "1", "&k a", "*a", "? a", "paramters"),
        ]
    ),
    SCALARS,
)
NODES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4).map(lambda each: f"[{', '.join(each)}]"),
        st.lists(st.tuples(KEYS, inner), max_size=4).map(
            lambda pairs: "{" + ", ".join(f"{key}: {value}" for key, value in pairs) + "}"
        ),
        inner.map(lambda node: f"&a {node}"),
    ),
    max_leaves=12,
)
FIELDS = st.dictionaries(
    st.sampled_from(["tp_dim", "sp_dim", "cp_dim", "blocks", "local", "decision", "tp_partial"]),
    st.one_of(SCALARS, NODES, st.sampled_from(["0", "-1", "[4, 4]", "[cp, ep]", "true"])),
    max_size=3,
).map(lambda fields: "{" + ", ".join(f"{key}: {value}" for key, value in fields.items()) + "}")
#: Texts that are valid files or nearly valid ones, so that every check is reached.
FILES = st.lists(
    st.one_of(
        FIELDS.map(lambda fields: f"parameters: {{fc: {fields}}}"),
        FIELDS.map(lambda fields: f"modules:\n  fc:\n    output: {fields}"),
        st.sampled_from(["cp_order: zigzag", "loss: {partial: [cp]}", "gradients: {mean: [dp]}"]),
        st.tuples(KEYS, NODES).map(lambda pair: f"{pair[0]}: {pair[1]}"),
    ),
    max_size=4,
    unique=True,
).map("\n".join)
TEXTS = st.one_of(
    FILES,
    FILES,
    NODES,
    st.text(max_size=60),
    st.text(alphabet="[]{}&*!|>-?:, \n\t'\"%#a1", max_size=60),
)


@given(TEXTS)
@settings(deadline=None)
@example(bomb(30))
@example("[" * 3000)
@example("loss: {partial: [[dp]]}")
def test_any_text_gives_usable_annotations_or_a_printable_error(text: str) -> None:
    entries, _ = attempt(text)
    if entries is None:
        return
    # Accepted annotations can be used and extended.
    annotations, point = Annotations(entries), Point.of(tp=2, cp=2, sp=True)
    for ndim in (0, 2):
        with contextlib.suppress(AnnotationError):  # a dimension that the tensor lacks
            annotations.parameter("fc", point, (4,) * ndim)
        with contextlib.suppress(AnnotationError):
            annotations.module("fc", "output", point, (4,) * ndim)
    annotations.loss(point)
    extend(text, {"parameters": {"added": {"tp_dim": 0}}, "loss": {"partial": ["cp"]}})


@given(st.one_of(st.binary(max_size=80), TEXTS.map(lambda text: text.encode(errors="replace"))))
@settings(deadline=None)
@example(b"\xff\xfea\x00")
def test_any_bytes_give_annotations_or_a_printable_error(
    tmp_path_factory: Any, data: bytes
) -> None:
    file = tmp_path_factory.getbasetemp() / f"untrusted-{os.getpid()}.yaml"
    file.write_bytes(data)
    message = f"{file}:"
    try:
        Annotations.read(file)
    except AnnotationError as error:
        message = str(error)
    file.unlink()
    assert message.startswith(f"{file}:")
    assert message.isprintable()


@given(FILES)
@settings(deadline=None)
def test_texts_that_pyyaml_and_our_loader_accept_have_the_same_entries(text: str) -> None:
    try:
        expected = parse(yaml.safe_load(text), "yaml")
        found = parse(load(text, "layouts.yaml"), "layouts.yaml")
    except (yaml.YAMLError, ValueError, TypeError, LookupError, AttributeError):
        return  # PyYAML's constructors raise all of these
    assert found == expected


@pytest.mark.parametrize("python", [False, True], ids=["libyaml", "python"])
@pytest.mark.parametrize(
    "text", [r'a: "\ud800"', r'"\ud800": 1', r'? "\udc00"', "a: \ud800", "a: &\udcff x"]
)
def test_a_lone_surrogate_is_an_error_for_both_parsers_of_yaml(monkeypatch, python, text):
    if python:
        monkeypatch.delattr(yaml, "CSafeLoader", raising=False)

    entries, message = attempt(text)

    assert entries is None
    assert re.search(r"surrogate|invalid Unicode|special characters are not allowed", message)
