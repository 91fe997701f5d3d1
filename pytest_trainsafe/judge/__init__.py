"""Judges turn the Runs of a test into Findings.

contract       the interface of a judge and of its result
registry       the built-in judges and those that a project registers
joint          combines the judgements of a test into one verdict
compare_judge  the judge that compares candidate and reference
replay_judge   the judge of random numbers; `replay` has its rules
ladder         the comparison, dtype by dtype; `judgement` is its result
compare        the comparison of one rung
localize       finds the faulty code
"""
