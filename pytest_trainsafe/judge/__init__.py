"""Judges turn the Runs of a test into Findings.

contract       what a judge is, and what it returns
registry       the judges that there are, and a project's own
joint          one verdict of all judges of a test
compare_judge  the judge that compares candidate and reference
ladder         its work, dtype by dtype; `judgement` is what it returns
compare        the comparison of one rung
localize       finds the code at fault
"""
