"""The relations of this package.  A program offers those that hold for it, with `hold`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, get_args

from pytest_trainsafe.core.usage import listing, shown
from pytest_trainsafe.errors import ArgumentError, ArgumentTypeError, RelationError
from pytest_trainsafe.judges.metamorphic.relations.relation import Change, Relation, Setting, View
from pytest_trainsafe.judges.metamorphic.relations.views import (
    Cropped,
    Folded,
    LossOf,
    Merged,
    Scaled,
)

if TYPE_CHECKING:
    from pytest_trainsafe.core.finding import Pattern


@dataclass(frozen=True)
class Split(Relation):
    """Divides the samples of a step into micro-batches of another size.

    `batch` and `count` name the arguments or axes for the number of samples in a micro-batch and
    the number of micro-batches in a step.  `into` is the number of micro-batches in a step of the
    changed Run.  By default, this is the number of dp ranks if the unchanged Run has more
    micro-batches than dp ranks, and the number of samples in a step otherwise.
    `loss` says how the loss of several micro-batches together follows from the losses that the
    program reports for each: "mean", "sum", or "none" if they are not comparable.

    Holds if the gradient of a step is a sum over samples.  It does not hold with batch
    normalisation, with losses of a whole micro-batch (such as a balancing loss of experts), or with
    dropout whose mask depends on the shape of the batch.
    """

    name: ClassVar[str] = "split"
    what: ClassVar[str] = "the same samples in micro-batches of another size"
    suspects: ClassVar[str] = (
        "a loss or a gradient is normalised, scaled or clipped per micro-batch instead of over the "
        "whole step: a mean over the tokens of one micro-batch where their numbers differ, a term "
        "divided by the batch size, a clip after each backward"
    )
    acts_through: ClassVar[tuple[str, ...]] = ("batch", "count")

    batch: str = "batch_size"
    count: str = "microbatches"
    into: int | None = None
    loss: LossOf = "mean"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.loss not in get_args(LossOf):
            raise ArgumentError(
                f"Split was given loss={shown(self.loss)}; loss must be one of "
                f"{listing(get_args(LossOf))}"
            )
        if self.into is not None and (type(self.into) is not int or self.into < 1):
            raise ArgumentError(
                f"Split was given into={shown(self.into)}; into must be the number of "
                "micro-batches of a step, an integer of at least 1"
            )

    def change(self, setting: Setting) -> Change:
        count, samples = setting.number(self.count), setting.number(self.batch)
        into = self._into(setting)
        return Change({self.count: into, self.batch: count * samples // into})

    def views(self, setting: Setting) -> tuple[View | None, View | None]:
        count, into = setting.number(self.count), self._into(setting)
        if into < count:
            return Merged(count // into, self.loss), None
        return None, Merged(into // count, self.loss)

    def _into(self, setting: Setting) -> int:
        count, samples = setting.number(self.count), setting.number(self.batch)
        total, ranks = count * samples, setting.point.size("dp")
        into = self.into
        if into is None:
            into = ranks if count > ranks else total
        if total % into:
            raise ArgumentError(
                f"{total} samples ({self.count}={count}, {self.batch}={samples}) cannot be divided "
                f"into {into} equal micro-batches; give a divisor of {total} as `into`"
            )
        if into == count:
            raise RelationError(
                f"the relation 'split' does not apply to {setting.program} at {setting.point}: a "
                f"step already has {self.count}={count} with {self.batch}={samples}; give another "
                "number of micro-batches as `into`, or more samples"
            )
        if max(into, count) % min(into, count):
            raise ArgumentError(
                f"into={into} is neither a multiple nor a divisor of {self.count}={count}; give "
                "one of these, so that whole micro-batches are joined or split"
            )
        if into % ranks:
            raise RelationError(
                f"the relation 'split' does not apply to {setting.program} at {setting.point}: "
                f"{into} micro-batches cannot be divided among dp={ranks} ranks; give a multiple "
                f"of {ranks} as `into`"
            )
        return into


@dataclass(frozen=True)
class Order(Relation):
    """Puts the micro-batches of a step in another order; with dp, this moves them to other ranks.

    The program must take its micro-batches from `ctx.microbatches`.  `order` is a permutation of
    the numbers of a step's micro-batches; by default odd numbers come first, and number 0 last.
    Holds if the gradient of a step is a sum over micro-batches.  It does not hold if buffers or
    random draws carry over from one micro-batch to the next.
    """

    name: ClassVar[str] = "order"
    what: ClassVar[str] = "the micro-batches of each step in another order"
    suspects: ClassVar[str] = (
        "something depends on which micro-batch comes last, or on which rank computes it: a "
        "gradient that is overwritten instead of accumulated, a scale taken from the last "
        "micro-batch, a mean over each rank's own tokens"
    )

    order: Sequence[int] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        given: object = self.order
        if given is None:
            return
        if not isinstance(given, (list, tuple, range)) or any(type(n) is not int for n in given):
            raise ArgumentTypeError(
                f"Order was given {shown(given)}; pass the numbers of a step's micro-batches "
                "in another order, such as Order([2, 0, 1])"
            )
        object.__setattr__(self, "order", tuple(given))  # hashable, as a frozen object is

    def change(self, setting: Setting) -> Change:
        total = setting.microbatches
        if total < 2:
            raise RelationError(
                f"the relation 'order' does not apply to {setting.program} at {setting.point}: a "
                f"step has {total or 'no'} micro-batch{'es' * (total != 1)}; give each step two or "
                "more"
            )
        numbers = range(total)
        order = (*numbers[1::2], *numbers[::2][::-1]) if self.order is None else tuple(self.order)
        if sorted(order) != list(numbers):
            raise ArgumentError(
                f"Order({list(order)}) is not a permutation of the {total} micro-batches of a step "
                f"of {setting.program}; give each number from 0 to {total - 1} once"
            )
        if order == tuple(numbers):
            raise ArgumentError(
                f"Order({list(order)}) leaves the {total} micro-batches of a step in their order; "
                "give another order"
            )
        return Change(order=order)


@dataclass(frozen=True)
class Recompute(Relation):
    """Recomputes activations in the backward instead of keeping them, or the other way round.

    If the Point does not recompute, the axis `recompute` is set to `value`; otherwise it is set to
    False.
    """

    name: ClassVar[str] = "recompute"
    what: ClassVar[str] = "activations recomputed in the backward, or kept"
    suspects: ClassVar[str] = (
        "the recomputed forward is not the first one: other random draws, another input, weights "
        "or scales of another step, or another autocast region"
    )
    visible: ClassVar[bool] = False  # equal bits are right; the guards check that it took effect

    value: str | bool = True

    def change(self, setting: Setting) -> Change:
        off = setting.point.get("recompute", False) in (False, "none", "")
        return Change({"recompute": self.value if off else False})


@dataclass(frozen=True)
class Padding(Relation):
    """Adds padding: more padded positions at the end of each sample.

    `argument` names the program's argument for the number of padded positions (0 for none), which
    the relation increases by `entries`; `length` names the argument for the number of positions
    without padding.
    Set `outermost` if these arguments count samples instead, and padded samples are at the end of
    the batch.  The comparison then leaves them out even where the program flattens the batch and
    other dimensions into one.
    Holds if the program masks padding wherever it combines positions or samples.
    """

    name: ClassVar[str] = "padding"
    what: ClassVar[str] = "the same data with more padding"
    suspects: ClassVar[str] = (
        "padding leaks: into attention, into a mean or an auxiliary loss that counts padded "
        "entries, or into a dropout mask that is drawn over the padded shape"
    )
    acts_through: ClassVar[tuple[str, ...]] = ("argument", "length")

    argument: str = "padding"
    length: str = "seq_len"
    entries: int = 3
    outermost: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        _require_positive("Padding", "entries", self.entries)

    def change(self, setting: Setting) -> Change:
        return Change({self.argument: setting.number(self.argument, least=0) + self.entries})

    def views(self, setting: Setting) -> tuple[View | None, View | None]:
        length = setting.number(self.length) + setting.number(self.argument, least=0)
        return None, Cropped(length, length + self.entries, self.outermost)


@dataclass(frozen=True)
class Vocabulary(Relation):
    """Makes the vocabulary longer, with ids that no sample has.

    `argument` names the program's argument for the number of unused ids, which the relation
    increases by `ids`; `size` names the argument for the size of the vocabulary without them.  Rows
    of the added ids are not compared.
    Holds if unused ids have no part in the softmax.
    """

    name: ClassVar[str] = "vocabulary"
    what: ClassVar[str] = "a longer vocabulary with unused ids"
    suspects: ClassVar[str] = (
        "unused ids take part: in the softmax or its normaliser, in label smoothing, in an "
        "auxiliary loss over all logits, or in a norm"
    )
    acts_through: ClassVar[tuple[str, ...]] = ("argument", "size")

    argument: str = "unused_ids"
    size: str = "vocabulary"
    ids: int = 5

    def __post_init__(self) -> None:
        super().__post_init__()
        _require_positive("Vocabulary", "ids", self.ids)

    def change(self, setting: Setting) -> Change:
        return Change({self.argument: setting.number(self.argument, least=0) + self.ids})

    def views(self, setting: Setting) -> tuple[View | None, View | None]:
        size = setting.number(self.size) + setting.number(self.argument, least=0)
        return None, Cropped(size, size + self.ids)


@dataclass(frozen=True)
class LossScale(Relation):
    """Multiplies the loss by another scale, which the program undoes before it uses gradients.

    `argument` names the program's argument for the scale, which the relation multiplies by
    `factor`.  If the factor is a power of two, no bits of the results change, except in numbers
    too small for the dtype.
    """

    name: ClassVar[str] = "loss-scale"
    what: ClassVar[str] = "the loss scaled, and the scale undone"
    suspects: ClassVar[str] = (
        "the scale is not undone, or only after gradients were used: a clip or a norm of scaled "
        "gradients, or a constant such as an epsilon or a fixed FP8 scale in the backward"
    )
    acts_through: ClassVar[tuple[str, ...]] = ("argument",)

    argument: str = "loss_scale"
    factor: float = 2.0

    def __post_init__(self) -> None:
        super().__post_init__()
        factor: object = self.factor
        number = isinstance(factor, (int, float)) and not isinstance(factor, bool)
        if not number or not 0 < self.factor < 2**64 or self.factor == 1:
            raise ArgumentError(
                f"LossScale was given factor={shown(factor)}; factor must be a positive number "
                "other than 1, such as 2"
            )

    def change(self, setting: Setting) -> Change:
        scale = setting.value(self.argument)
        if isinstance(scale, bool) or not isinstance(scale, (int, float)) or not scale > 0:
            raise RelationError(
                f"the relation 'loss-scale' does not apply to {setting.program}: "
                f"{self.argument}={shown(scale)} is not a positive number; give a positive number"
            )
        return Change({self.argument: scale * self.factor})

    def views(self, setting: Setting) -> tuple[View | None, View | None]:
        return None, Scaled(self.factor)

    def explain(self, pattern: Pattern) -> Pattern:
        if pattern.name != "scaled":
            return pattern
        from pytest_trainsafe.core.finding import Pattern  # imports msgspec

        text = f"the value is {pattern.factor:.4g} times the reference"
        cause = "the loss scale is still in it, or was divided out twice"
        short = f"{pattern.factor:.4g} times the reference, the loss scale is still in it"
        return Pattern(pattern.name, text, cause=cause, short=short)


@dataclass(frozen=True)
class Repeat(Relation):
    """Repeats the samples of every micro-batch several times, one copy after the other.

    `argument` names the program's argument for the number of copies, which the relation multiplies
    by `times`.  Holds if the loss is a mean over samples; auxiliary losses of a whole micro-batch,
    such as a balancing loss, do not break it.
    """

    name: ClassVar[str] = "repeat"
    what: ClassVar[str] = "every sample of a micro-batch several times"
    suspects: ClassVar[str] = (
        "a term is not a mean over samples: it is summed, or divided by the number of samples twice"
    )
    acts_through: ClassVar[tuple[str, ...]] = ("argument",)

    argument: str = "repeats"
    times: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        _require_positive("Repeat", "times", self.times, least=2)

    def change(self, setting: Setting) -> Change:
        return Change({self.argument: setting.number(self.argument) * self.times})

    def views(self, setting: Setting) -> tuple[View | None, View | None]:
        return None, Folded(self.times)


def _require_positive(relation: str, name: str, given: object, least: int = 1) -> None:
    if type(given) is not int or given < least:
        raise ArgumentError(
            f"{relation} was given {name}={shown(given)}; {name} must be an integer of at least "
            f"{least}"
        )
