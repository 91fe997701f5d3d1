"""The number systems in which tests are judged: the rungs of the precision ladder.

rung        what a rung says of its numbers, of its rounding and of its Runs
table       the rungs of this package, and those that a project adds
arithmetic  what alignment and judging ask of numbers, as a Protocol
floating    the arithmetic of floating-point numbers

Only `floating` imports torch; a rung imports its arithmetic when it is first needed.
"""
