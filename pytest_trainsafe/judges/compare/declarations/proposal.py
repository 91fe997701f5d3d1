"""A proposal of annotations to add, and the words that name what is missing.

Made by `propose`; the ladder, the report and the summary read it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from pytest_trainsafe.core.finding import Finding
from pytest_trainsafe.judges.compare.comparison import Comparison
from pytest_trainsafe.judges.compare.declarations.averaged import Means
from pytest_trainsafe.judges.compare.declarations.suggest import AnnotationPatch, MissingLayout
from pytest_trainsafe.judges.compare.rung import RungTraces
from pytest_trainsafe.sweep.point_summary import plural

#: The sections of an annotation file whose entries name tensors, and what they name.
_NAMED = {"parameters": "parameter", "modules": "module"}


@dataclass(slots=True)
class Proposal:
    """The annotations to add, and what they leave unexplained.

    `wanted` has the form of an annotation file; `tensors` counts the tensors whose layout was
    found, and those that `means` explains.  `left` is the first failing finding after all proposals
    are adopted, None if nothing fails then.  `withheld` counts the layouts with partial sums that
    are not proposed because something still fails.  `unexplained` describes the first tensor for
    which no layout was found, and the closest layout.  `file` is the annotation file that the
    program read, "" for none, and `model` the section of it that the program used.  `means` says
    which declaration of gradients or losses as means over ranks to add or remove, if that explains
    all wrong tensors; else it is None.  `shaped` counts the parameters in `wanted` whose shard was
    found by shape alone.  `lacking` has the section and the name of everything whose layout is
    missing.  `rest` has the traces with the found layouts, and their comparison, if it fails.
    `needs` has the found layouts themselves, with those that are withheld.  `undecided` are those
    in `wanted` that a missing reduction would explain as well, and `certain` is `wanted` without
    them, which may be written to a file.  `misspelt` has the section and the name of everything
    that lacks a layout because the annotation for it matches nothing: it is not in `wanted`.
    `filled` is true if shards of parameters were initialized as if each were the whole.  `unseen`
    are means that explain all wrong tensors, although no compared tensor shows that they are taken.
    """

    wanted: AnnotationPatch
    tensors: int
    left: Finding | None
    withheld: int = 0
    unexplained: str = ""
    file: str = ""
    means: Means | None = None
    shaped: int = 0
    model: str = ""
    lacking: tuple[tuple[str, str], ...] = ()
    rest: tuple[RungTraces, Comparison] | None = None
    needs: tuple[MissingLayout, ...] = ()
    undecided: tuple[MissingLayout, ...] = ()
    certain: AnnotationPatch = field(default_factory=dict)
    misspelt: tuple[tuple[str, str], ...] = ()
    filled: bool = False
    unseen: Means | None = None

    @property
    def settles(self) -> bool:
        """Whether these annotations may explain the whole failure, without a second fault."""
        return self.left is None or self.filled

    @property
    def leads(self) -> bool:
        """Whether the report starts with it: an annotation is missing, wrong or misspelt.

        What differs may follow from that, so it is no evidence of a fault in the program.
        """
        means = self.means or self.unseen
        return bool(self.wanted) or means is not None or bool(self.misspelt)

    @property
    def headline(self) -> str:
        """What is missing: `layouts are missing for 3 parameters and 2 modules`.

        "" if only annotations that match nothing are to be corrected.
        """
        means = _means_text(self.means) if self.means is not None else ""
        if self.unseen is not None:
            means = f"perhaps {_means_text(self.unseen)}"
        parts = counted(self.lacking)
        if not parts:
            return means
        text = f"layouts are missing for {in_words(parts)}"
        if parts == ["the loss"]:
            text = "the layout of the loss is missing"
        if self.undecided:
            text += ", or a reduction is"
        return f"{text}; {means}" if means else text


def counted(names: Iterable[tuple[str, str]]) -> list[str]:
    """How many of each section there are: `3 parameters`, `1 module`, `the loss`."""
    sections = Counter(section for section, _ in names)
    parts = [plural(sections[each], noun) for each, noun in _NAMED.items() if sections[each]]
    return [*parts, "the loss"] if sections["loss"] else parts


def in_words(parts: Sequence[str]) -> str:
    """`a`, `a and b`, or `a, b and c`."""
    *others, last = parts
    return f"{', '.join(others)} and {last}" if others else last


def _means_text(means: Means) -> str:
    """What is missing, or wrong, in the declared means over ranks."""
    if means.dropped and not means.wrapper:
        return f"the annotation `gradients: {{mean: [{', '.join(means.dropped)}]}}` is wrong"
    said = []
    if means.gradients or means.dropped:
        said.append(f"`gradients: {{mean: [{', '.join(means.gradients)}]}}`")
    if means.loss:
        said.append(f"`loss: {{mean: [{', '.join(means.loss)}]}}`")
    plain = len(said) == 1
    return (
        f"the {'annotation' if plain else 'annotations'} {' and '.join(said)} "
        f"{'is' if plain else 'are'} missing"
    )
