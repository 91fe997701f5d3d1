"""References that later runs of pytest reuse.

cache        stores traces of references, and finds them by key
fingerprint  what a key contains: code, settings, packages, variables
sources      the source files of a program, and what they import
inputs       the files that a program reads
"""
