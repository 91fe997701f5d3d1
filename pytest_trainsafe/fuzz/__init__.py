"""Fuzz tests: hypothesis chooses the Points of a program, and a failure is reduced to its axes.

    strategy    `parallel_points`, a hypothesis strategy of valid Points
    decorator   `trainsafe_fuzz`, which makes a test that runs at such Points
    source      what these two share: the declaration, and the Points of the current pytest run
    examples    runs Points for one test, each once, and makes the failure that hypothesis sees
    runner      runs the test at one Point
    failures    which failures are the same, which are flaky, and what each one needs
    totals      the summary of all examples
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
