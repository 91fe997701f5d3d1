"""The faults of synthetic training loops, with the relation and the rule that each breaks."""

from __future__ import annotations

from tests.support.learn.training_loops import Plan

#: A program from which no pack was learned.
OTHER = Plan("other", optimizer="RMSprop", batch=16, autocast="torch.bfloat16", steps=5)

#: Each fault, the relation that reports it, and words of the broken rule.
FAULTS = [
    (
        "no_zero_grad",
        "sequence",
        "between two calls of torch.optim.*.step, torch.optim.*.zero_grad",
    ),
    ("no_zero_grad", "renewed", "between two calls of torch.optim.*.step, grad of some"),
    ("scheduler_first", "sequence", "in a step, torch.optim.*.step is called before"),
    ("same_batch", "argument", "result of torch.utils.data.DataLoader.__next__ differs from"),
    ("dropout_in_evaluation", "argument", "arg.training of torch.nn.functional.dropout is False"),
    ("truncated", "output", "shape of result of torch.nn.Linear.forward is that of arg.input"),
    ("no_autocast", "output", "dtype of result of torch.nn.Linear.forward is that of autocast"),
    ("detached", "output", "result of torch.nn.functional.dropout requires gradients"),
    ("not_finite", "output", "result of torch.nn.functional.dropout is finite"),
    ("write_outside", "within", "data of torch.nn.Parameter changes only inside"),
    ("no_update", "contain", "every call of torch.optim.*.step updates data"),
    ("frozen", "periodic", "data of every torch.nn.Parameter changes in every step"),
    ("double_count", "numeric", "step of optimizer.state goes up by one"),
    ("explosion", "numeric", "norm of data of torch.nn.Parameter changes by at most"),
    ("stale_optimizer", "membership", "the optimizer holds parameters of the model only"),
    ("late_freezing", "membership", "every parameter that the optimizer holds requires gradients"),
    ("lost", "output", "content of result of torch.testing.Link.copy is that of arg.tensor"),
    ("cut_off", "output", "result of torch.testing.Link.report equals arg.total"),
    ("uncounted", "argument", "arg.rows of torch.testing.Link.report equals arg.total"),
]
