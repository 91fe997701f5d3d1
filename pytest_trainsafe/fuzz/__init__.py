"""Fuzz tests: hypothesis chooses the Points of a program, and a failure is reduced to its axes.

    strategy    `parallel_points`, a hypothesis strategy of valid Points
    decorator   `trainsafe_fuzz`, which makes a test that runs at such Points
    source      what these two share: the declaration, and the Points of the current pytest run
    examples    runs Points for one test, each once, and explains the first failure
    flaky       checks whether a failure is the same when its Runs are repeated
    health      the health check that fails if rules exclude most Points
    replay      the example database, unused while an option restricts the test's Points

hypothesis is an optional dependency, imported by this package alone.
"""

try:
    import hypothesis  # noqa: F401
except ImportError as error:
    raise ImportError(
        "pytest-trainsafe's fuzz tests need hypothesis: pip install 'pytest-trainsafe[fuzz]'"
    ) from error
