"""The terminal of pytest, for ranks: what they print is shown on it while they run.

console     the terminal itself, of which a process has one
relay       copies what ranks print to the console, line by line
attend      does so for one group
"""
