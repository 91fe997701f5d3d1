"""Observes API calls and the state of training objects in this process, for `judges/learn/events`.

Nothing is patched unless an observation is active.

- `observation.py`: `observe()` for an ordinary test, and the `Observation` that it yields.
- `ranks.py`: the observation of a rank of a Run, which writes a file of its trace.
- `plain.py`: the observation of a plain script, which writes a file too.
- `observer.py`: receives every patched call; keeps the stacks of calls and the phases.
- `frames.py`: the calls of a thread that have not returned.
- `slips/`: watches for uses of torch's API that are rarely meant.
- `steps.py`: finds when a step ends, and which steps are recorded.
- `patching/`: exchanges functions for wrappers that report calls.
- `operators.py`: reports calls of torch's operators.
- `state/`: notices changes of models, optimizers, schedulers, scalers, loaders and samplers.
- `describe.py`, `facts.py`, `binding.py`, `names.py`, `meta.py`: describe a call, its arguments and
  the state of the training at the call, as they are recorded.
"""
