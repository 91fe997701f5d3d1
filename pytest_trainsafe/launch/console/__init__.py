"""The terminal of pytest, for ranks: they write lines to it, and one of them may debug on it.

console     the terminal itself, of which a process has one
relay       copies what ranks print to the console, line by line
loan        lends the terminal to a rank that asks for it, and takes it back
attend      both, for one group
breakpoints what `breakpoint()` does in a rank
debugger    pdb in a rank, on the terminal
"""
