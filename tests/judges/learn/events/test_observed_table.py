"""A table of observed events replays the same events to a listener."""

from __future__ import annotations

from pytest_trainsafe.judges.learn.events.events import Call, Change, TensorFacts, Value
from pytest_trainsafe.judges.learn.events.table import TableBuilder, replay


class _Seen:
    """A listener that lists the events it receives, in comparable form."""

    def __init__(self) -> None:
        self.lines: list[object] = []

    def entered(self, call: Call) -> None:
        parent = None if call.parent is None else call.parent.api
        self.lines.append(("entered", call.api, dict(call.meta), parent, dict(call.values)))

    def left(self, call: Call) -> None:
        self.lines.append(("left", call.api, call.exception, dict(call.values)))

    def changed(self, change: Change) -> None:
        by = None if change.by is None else change.by.api
        names = change.object, change.type, change.attribute
        self.lines.append(("changed", *names, change.before, change.after, by, change.changed))

    def step_ended(self, step: int) -> None:
        self.lines.append(("step", step))


def test_a_table_replays_the_events_it_was_built_from() -> None:
    facts = TensorFacts(2**64 - 1, (2, 3), "float32", "cpu", 1.5, requires_grad=True, flags=("a",))
    weight, scalar = (
        Value("torch.Tensor", tensor=facts, identity=4),
        TensorFacts(1, (), "int64", ""),
    )
    step = Call("torch.optim.Adam.step", {"step": 0, "phase": "optimizer"})
    step.values.update(
        {"self": Value("torch.optim.Adam", identity=1), "arg.lr": Value("float", 0.1)}
    )
    inner = Call("torch.add", {"step": 0, "flag": True}, parent=step, thread=2)
    direct, built = _Seen(), TableBuilder()
    for listener in (direct, built):
        step.exception, inner.exception = "", ""
        inner.values.clear()
        listener.entered(step)
        listener.entered(inner)
        inner.values["arg.0"] = Value("int", 2**60 + 1)
        listener.changed(Change("model.w", "torch.nn.Parameter", "data", weight, {}, None, inner))
        inner.exception = "builtins.ValueError"
        listener.left(inner)
        step.values["result"] = Value("torch.Tensor", tensor=scalar)
        listener.left(step)
        listener.changed(
            Change("o.lr", "float", "lr", Value("float", 0.2), {}, Value("bool", False))
        )
        listener.step_ended(0)
        del step.values["result"]
    again = _Seen()
    replay(built.table(), again)
    # A call is stored when it returns, so its entry is replayed with all arguments.
    direct.lines[1] = ("entered", "torch.add", {"step": 0, "flag": True}, step.api, inner.values)
    assert again.lines == direct.lines


def test_a_call_that_never_returned_is_replayed_without_an_exit() -> None:
    built, seen = TableBuilder(), _Seen()
    built.entered(Call("torch.distributed.all_reduce", {}))
    table = built.table()
    replay(table, seen)
    assert seen.lines == [("entered", "torch.distributed.all_reduce", {}, None, {})]
    assert table.calls["exit"].tolist() == [-1]
