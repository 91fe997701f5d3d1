"""Judges turn the Runs of a test into Findings.

contract       the interface of a judge and of its result
registry       the built-in judges and those that a project registers
joint          combines the judgements of a test into one verdict
compare_judge  the judge that compares candidate and reference
replay_judge   the judge of random numbers; `replay` has its rules
ladder         runs the comparison dtype by dtype; `judgement` is its result
compare        compares candidate and reference in one dtype (one rung of the ladder)
localize       finds the faulty code
"""
