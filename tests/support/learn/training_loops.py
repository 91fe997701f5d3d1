"""Synthetic training loops: the events of a healthy program, and planted faults.

Nothing is trained: a Listener receives the calls and changes that a loop with a small model would
make, with made-up digests and norms.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pytest_trainsafe.judges.learn.events.events import (
    Call,
    Change,
    Listener,
    Plain,
    TensorFacts,
    Value,
)
from pytest_trainsafe.judges.learn.events.table import Table, TableBuilder
from pytest_trainsafe.judges.learn.run import ObservedRun

PARAMETER = "torch.nn.Parameter"
#: The only parameter that every tp rank holds whole; the others are split over tp.
WHOLE = "norm.weight"
NONE_VALUE = Value("NoneType")


@dataclass(frozen=True)
class Plan:
    """A program and its fault from step `at` on ("" for a healthy program)."""

    program: str = "mlp"
    optimizer: str = "Adam"
    steps: int = 6
    accumulate: int = 1
    parameters: Sequence[str] = ("fc1.weight", "fc2.weight", WHOLE)
    clip: bool = True
    evaluate: bool = True
    autocast: str | None = None
    dp: int = 1
    tp: int = 1
    batch: int = 8
    layers: int = 1
    warm_up: bool = False
    set_to_none: bool = True
    fault: str = ""
    at: int = 3


def run_of(plan: Plan) -> ObservedRun:
    """The tables of all ranks of a plan."""
    ranks = [(dp, tp) for dp in range(plan.dp) for tp in range(plan.tp)]
    tables = [table_of(plan, dp, tp) for dp, tp in ranks]
    return ObservedRun(plan.program, tables, {"torch": "2.13.0"})


def table_of(plan: Plan, dp: int = 0, tp: int = 0) -> Table:
    """The table of one rank."""
    builder = TableBuilder(dp * plan.tp + tp)
    Loop(plan, builder, dp, tp).train()
    return builder.table()


def tensor(
    digest: int,
    shape: tuple[int, ...] = (4, 4),
    dtype: str = "torch.float32",
    *,
    norm: float | None = 1.0,
    grad: bool = False,
    finite: bool = True,
    flags: tuple[str, ...] = (),
    identity: int = 0,
    kind: str = "torch.Tensor",
) -> Value:
    """The value of a tensor."""
    facts = TensorFacts(
        digest & (2**64 - 1), shape, dtype, "cpu", norm, False, finite, grad, False, flags
    )
    return Value(kind, None, facts, identity)


def plain(value: Plain) -> Value:
    """The value of a number, a text, a truth value or None."""
    return Value(type(value).__name__, value)


class Loop:
    """The training loop of one rank."""

    def __init__(self, plan: Plan, listener: Listener, dp: int = 0, tp: int = 0) -> None:
        self.plan, self.listener, self.dp, self.tp = plan, listener, dp, tp
        self.step = 0
        self.phase = "init"
        self.microbatch: int | None = None
        self.training = True
        self.salt = sum(map(ord, plan.program)) * 1_000_003
        self.data = {name: self.content(name, -1) for name in plan.parameters}
        self.norms = dict.fromkeys(plan.parameters, 1.0)
        self.grads: dict[str, Value] = dict.fromkeys(plan.parameters, NONE_VALUE)
        self.touched: set[tuple[str, str]] = set()
        self.epoch = 0
        self.count = 0

    def faulty(self, name: str) -> bool:
        """Whether the plan's fault is `name`, and the loop has reached its first step."""
        return self.plan.fault == name and self.step >= self.plan.at

    def content(self, name: str, step: int) -> int:
        """The digest of a parameter: equal on the ranks that hold the same part."""
        part = 0 if name == WHOLE else self.tp
        drift = self.tp if name == WHOLE and self.faulty("drift") else 0
        return self.salt + sum(map(ord, name)) * 7919 + step * 104729 + part * 31 + drift + 5

    def meta(self) -> dict[str, Plain]:
        inside = self.phase != "init"
        found: dict[str, Plain] = {
            "step": self.step if inside else None,
            "microbatch": self.microbatch,
            "phase": self.phase,
            "rank": self.dp * self.plan.tp + self.tp,
            "world_size": self.plan.dp * self.plan.tp,
            "autocast": self.plan.autocast if self.phase == "forward" else None,
            "no_grad": self.phase == "evaluation",
        }
        if self.plan.dp > 1:
            found["dp_rank"] = self.dp
        if self.plan.tp > 1:
            found["tp_rank"] = self.tp
        return found

    def call(self, api: str, parent: Call | None = None, /, **values: Value) -> Call:
        named = {name.replace("_of_", "."): value for name, value in values.items()}
        made = Call(api, self.meta(), parent, values=dict(named))
        self.listener.entered(made)
        return made

    def leave(self, call: Call, /, **results: Value) -> None:
        call.values.update({name.replace("_of_", "."): each for name, each in results.items()})
        self.listener.left(call)

    def change(
        self, name: str, kind: str, attribute: str, before: Value, after: Value, by: Call | None
    ) -> None:
        self.touched.add((name, attribute))
        self.listener.changed(Change(name, kind, attribute, after, self.meta(), before, by))

    def sample(self, name: str, kind: str, attribute: str, after: Value) -> None:
        if (name, attribute) not in self.touched:
            change = Change(name, kind, attribute, after, self.meta(), changed=False)
            self.listener.changed(change)

    def train(self) -> None:
        """Run all steps, each followed by an evaluation if the plan has one."""
        self.query()
        self.initialize()
        for step in range(self.plan.steps):
            self.step = step
            self.one_step()
            if self.plan.evaluate:
                self.phase, self.training = "evaluation", False
                self.forward(1000 + self.step)
                self.training = True
            self.end_step()

    def query(self) -> None:
        self.leave(self.call("torch.cuda.is_available"), result=plain(False))

    def initialize(self) -> None:
        """Initialise each parameter."""
        names = [*self.plan.parameters, *self.plan.parameters[: self.plan.fault == "twice"]]
        for number, name in enumerate(names):
            given = tensor(number, identity=self.parameter(name).identity, kind=PARAMETER)
            call = self.call("torch.nn.init.normal_", arg_of_tensor=given)
            self.leave(call, result=given)

    def transport(self, batch: Value) -> None:
        """Copy a batch to another device, and report the number of rows."""
        copy = self.call("torch.testing.Link.copy", arg_of_tensor=batch)
        assert batch.tensor is not None
        lost = digest_of(batch) if self.faulty("lost") else batch.tensor.digest
        self.leave(copy, result=tensor(lost, batch.tensor.shape))
        rows = batch.tensor.shape[0]
        report = self.call(
            "torch.testing.Link.report",
            arg_of_rows=plain(rows - self.faulty("uncounted")),
            arg_of_total=plain(rows),
        )
        self.leave(report, result=plain(rows - self.faulty("cut_off")))

    def reduce(self) -> None:
        """Call all_reduce on a small tensor."""
        rows = 1 + (self.dp if self.faulty("ragged") else 0)
        for _ in range(1 + (self.dp if self.faulty("once_more") else 0)):
            call = self.call(
                "torch.distributed.all_reduce",
                arg_of_tensor=tensor(self.salt + self.step + self.dp, (rows,)),
                arg_of_group=Value("torch.distributed.ProcessGroup"),
            )
            self.leave(call)

    def one_step(self) -> None:
        plan = self.plan
        self.phase = "optimizer"
        if not self.faulty("no_zero_grad"):
            self.zero_grad()
        if self.faulty("scheduler_first"):
            self.scheduler()
        for self.microbatch in range(plan.accumulate):
            loss = self.forward(self.step * plan.accumulate + self.microbatch)
            self.backward(loss)
        self.microbatch = None
        self.phase = "optimizer"
        if plan.dp > 1:
            self.reduce()
        if plan.clip:
            call = self.call("torch.nn.utils.clip_grad_norm_", arg_of_max_norm=plain(1.0))
            self.leave(call, result=tensor(self.salt + self.step, (), norm=0.5))
        if self.faulty("write_outside"):
            self.write(plan.parameters[0], None)
        self.optimize()
        if not self.faulty("scheduler_first"):
            self.scheduler()

    def forward(self, index: int) -> Value:
        if self.phase != "evaluation":
            self.phase = "data"
        number = 0 if self.faulty("same_batch") else index
        own = 0 if self.faulty("same_data") else self.dp
        batch = tensor(self.salt + 977 * number + own * 13 + 1, (self.plan.batch, 4))
        loader = self.call("torch.utils.data.DataLoader.__next__")
        self.leave(loader, result=batch)
        self.transport(batch)
        if self.phase != "evaluation":
            self.phase = "forward"
        low = self.plan.autocast if self.phase == "forward" else None
        low = None if self.faulty("no_autocast") else low
        dtype = low or "torch.float32"
        grad = self.phase == "forward" and not self.faulty("detached")
        out = batch
        for layer in range(self.plan.layers):
            out = self.layer(out, dtype, grad, 100 * layer)
        loss_call = self.call("torch.nn.functional.cross_entropy", arg_of_input=out)
        loss = tensor(digest_of(batch) + 3, (), grad=grad)
        self.leave(loss_call, result=loss)
        return loss

    def layer(self, given: Value, dtype: str, grad: bool, salt: int) -> Value:
        """A linear layer and a dropout."""
        mode = plain(self.training)
        linear = self.call("torch.nn.Linear.forward", self_of_training=mode, arg_of_input=given)
        rows = 1 if self.faulty("truncated") else self.plan.batch
        whole = self.phase == "forward"
        hidden = tensor(digest_of(given) + salt + 1, (rows, 4), dtype, grad=whole)
        self.leave(linear, result=hidden)
        dropping = self.training or self.faulty("dropout_in_evaluation")
        drop = self.call(
            "torch.nn.functional.dropout",
            arg_of_input=hidden,
            arg_of_p=plain(0.1),
            arg_of_training=plain(dropping),
        )
        finite = not self.faulty("not_finite")
        out = tensor(digest_of(given) + salt + 2, (rows, 4), dtype, grad=grad, finite=finite)
        self.leave(drop, result=out)
        return out

    def backward(self, loss: Value) -> None:
        self.phase = "backward"
        call = self.call("torch.Tensor.backward", self=loss)
        for name in self.plan.parameters:
            if self.faulty("frozen") and name == self.plan.parameters[0]:
                continue
            old = self.grads[name]
            before = 0.0 if old.tensor is None else old.tensor.norm or 0.0
            self.count += 1
            new = tensor(self.content(name, self.step) ^ self.count << 20, norm=before + 0.3)
            self.grads[name] = new
            self.change(f"model.{name}", PARAMETER, "grad", old, new, call)
        self.leave(call)

    def zero_grad(self) -> None:
        call = self.call(
            f"torch.optim.{self.plan.optimizer}.zero_grad",
            arg_of_set_to_none=plain(self.plan.set_to_none),
        )
        for name, old in self.grads.items():
            if old.tensor is not None:
                self.grads[name] = NONE_VALUE
                self.change(f"model.{name}", PARAMETER, "grad", old, NONE_VALUE, call)
        self.leave(call)

    def optimize(self) -> None:
        call = self.call(
            f"torch.optim.{self.plan.optimizer}.step",
            self=Value(f"torch.optim.{self.plan.optimizer}", identity=1),
            self_of_has_gradients=plain(True),
            self_of_stale=plain(2 * self.faulty("stale_optimizer")),
            self_of_frozen=plain(int(self.faulty("late_freezing"))),
        )
        inner = self.call(f"torch.optim.functional.{self.plan.optimizer.lower()}", call)
        resting = self.plan.warm_up and self.step == 0
        for name in self.plan.parameters:
            if self.faulty("no_update") or resting:
                break
            if self.grads[name].tensor is not None:
                self.write(name, inner)
        self.leave(inner)
        self.leave(call)
        after = self.step + (3 if self.faulty("double_count") else 1)
        for name in self.plan.parameters:
            state = f"optimizer.state.{name}"
            self.change(state, "dict", "step", plain(self.step), plain(after), call)

    def write(self, name: str, by: Call | None) -> None:
        self.count += 1
        old = self.parameter(name)
        self.data[name] = self.content(name, self.step * 7 + (by is None))
        self.norms[name] *= 50.0 if self.faulty("explosion") else 1.01
        self.change(f"model.{name}", PARAMETER, "data", old, self.parameter(name), by)

    def parameter(self, name: str) -> Value:
        flags = ("tensor_model_parallel",) if self.plan.tp > 1 and name != WHOLE else ()
        identity = 10 + list(self.plan.parameters).index(name)
        return tensor(
            self.data[name],
            norm=self.norms[name],
            grad=True,
            flags=flags,
            identity=identity,
            kind=PARAMETER,
        )

    def scheduler(self) -> None:
        call = self.call("torch.optim.lr_scheduler.StepLR.step")
        self.change("scheduler.0", "StepLR", "last_epoch", *self._epochs(), call)
        self.leave(call)

    def _epochs(self) -> tuple[Value, Value]:
        return plain(self.step), plain(self.step + 1)

    def end_step(self) -> None:
        self.phase = "optimizer"
        held = plain(not self.faulty("stale_optimizer"))
        for name in self.plan.parameters:
            self.sample(f"model.{name}", PARAMETER, "data", self.parameter(name))
            self.sample(f"model.{name}", PARAMETER, "grad", self.grads[name])
            self.sample(f"model.{name}", PARAMETER, "in_optimizer", held)
        numbers = ",".join(str(10 + at) for at in range(len(self.plan.parameters)))
        group = "optimizer.param_groups.0"
        self.sample(group, "dict", "params", plain(numbers))
        rate = 0.0 if self.plan.warm_up and self.step == 0 else 0.1
        self.sample(group, "dict", "lr", plain(rate))
        self.touched.clear()
        self.listener.step_ended(self.step)


def digest_of(value: Value) -> int:
    """A number made from a tensor's digest, for digests of tensors that are computed from it."""
    assert value.tensor is not None
    return value.tensor.digest * 31


#: Healthy programs that differ in settings that authors choose.
HEALTHY: dict[str, Plan] = {
    plan.program: plan
    for plan in (
        Plan("mlp"),
        Plan("cnn", optimizer="SGD", clip=False, accumulate=2, batch=4),
        Plan("lm", optimizer="AdamW", autocast="torch.bfloat16", warm_up=True),
        Plan("gan", optimizer="Adam", evaluate=False, parameters=("a.weight", WHOLE)),
    )
}

#: Each of them, and a copy that trains for one step more: as many programs as most claims need
#: before they are checked on another program.
LEARNED: Mapping[str, Plan] = HEALTHY | {
    f"{name}_twin": replace(plan, program=f"{name}_twin", steps=plan.steps + 1)
    for name, plan in HEALTHY.items()
}
