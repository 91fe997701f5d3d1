"""What `assert_deterministic` needs inside the ranks, and `deterministic_runtime` for programs.

runtime          makes torch deterministic in a region of the program, and restores its settings
sealed           fixes the clock, process id and system random numbers that the program reads
outside_reads    records calls of the program that read one of these
numpy_memory     fills the small arrays of numpy.empty, whose memory NumPy keeps from before
operator_ledger  hashes the results of every operator of one step
"""
