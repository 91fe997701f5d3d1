"""What several test files use, and the programs that their ranks run, in a folder for each stage.

Tests, ranks and inner runs of pytest import it from here by its full name.
"""
