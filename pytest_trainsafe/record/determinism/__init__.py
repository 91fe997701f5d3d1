"""What the ranks of `assert_deterministic` do beyond recording.

runtime          sets torch up to be deterministic, and puts everything back
sealed           gives the program the same clock, process id and system random numbers in every Run
operator_ledger  hashes the results of every operator of one module and step
"""
