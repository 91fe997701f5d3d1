"""Observes API calls and the state of training objects in this process, for `trace/observed`.

Nothing is patched unless an observation is active.

- `observation.py`: `observe()` for an ordinary test, and the `Observation` that it yields.
- `ranks.py`: the observation of a rank of a Run, which writes a file of its trace.
- `observer.py`: receives every patched call; keeps the stacks of calls, steps and phases.
- `variables.py`, `slots.py`, `plain.py`: what is followed of models, optimizers, schedulers,
  scalers, loaders and samplers.
- `catalogue.py`, `libraries.py`, `selection.py`: which APIs exist, and which are observed.
- `patches.py`: exchanges functions for wrappers and puts them back.
- `describe.py`, `facts.py`, `binding.py`, `names.py`: arguments, results and tensors as Values.
- `meta.py`: the meta variables of a call; `operators.py`: calls of torch's operators.
"""
