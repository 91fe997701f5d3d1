"""Notices slips (`events/slips.py`) while a program trains.

- `moments.py`: what a watcher sees of a patched call, and the base class of watchers.
- `ledger.py`: passes calls to the watchers, and reports slips.
- `gradients.py`, `losses.py`: gradients between a backward and a step, and their weights.
- `models.py`, `copies.py`, `weights.py`: how models run, copies of them, and their weights.
- `steps/`, `parts.py`: steps of optimizers, and parts of a model in a forward.
- `inputs/`, `objects/`: what models and losses get, and objects when training begins.
- `schedules.py`, `data.py`, `loading.py`, `resumed.py`, `recompute.py`, `replicas.py`: the
  rest of a training.
"""
