"""Keeps what a program draws and stores the same at every rung of the ladder.

A rung changes the dtype in which values flow, but not the random numbers of the program and not
what it keeps in another dtype on purpose.  `default` follows the program's own default dtype while
torch's is float64, and `draws` draws random numbers in it.
"""
