"""Settings of a run: options and their ini twins, checks to accept, the required torch.

settings, table  what is set for a run, and the option of each setting
values, checks   what an option takes; the names of checks to accept
grammar          the axis words of a sweep
profiles         settings under a name
options, read    adds the options to pytest's, and reads them
extensions       what a project adds by hooks
header           the lines of pytest's header
requirement      the supported releases of torch
"""
