"""Compares the random streams of a resumed Run with those of the uninterrupted one.

find   finds the generators that draw other numbers, and decides why
lost   describes a stream that was not restored: by how many draws it is ahead or behind
seeds  recognises generators that the program seeds during the training
drift  finds the first call that differs, for a stream that was restored
"""
