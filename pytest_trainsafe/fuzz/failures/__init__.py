"""The failures of a fuzz test: which are the same, which are flaky, and what each one needs.

ending      how a test ended at one Point, and which failures are the same bug
explain     the smallest failing Point of one failure, and the axes that it needs
further     searches for failures that differ from the first
flaky       how repeated Runs differ, and why
"""
