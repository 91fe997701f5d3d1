"""Settings of a run: command line options and their ini keys, and the required torch.

settings, table  the settings of a run, and the option that sets each of them
values, checks   the values that options take, and the names of checks that `accept` takes
grammar          the words of a sweep, such as tp=1,2
profiles         named groups of settings
options, read    adds the options to pytest's, and reads them
extensions       what a project adds by hooks
header           the lines of pytest's header
requirement      the supported releases of torch
"""
