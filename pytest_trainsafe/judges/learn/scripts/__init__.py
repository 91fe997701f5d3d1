"""Learning from scripts that are not tests, and checking them: `python -m pytest_trainsafe learn`.

command     the command line
collect     runs the script and collects what its ranks observe
"""
