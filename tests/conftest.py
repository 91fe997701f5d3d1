"""For every test: pytest's own test harness."""

pytest_plugins = ["pytester"]
