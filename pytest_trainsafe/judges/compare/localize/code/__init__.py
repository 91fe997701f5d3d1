"""The source lines of a fault.

places  the line of a fault outside the modules, such as a reduction or an optimizer step
owners  the class, the functions and the calls of a module at fault
drifted lines that change a parameter outside of the optimizer's step, on some ranks only
unheld  the lines that change parameters that no optimizer holds
lines   lines that a trace recorded, and clauses that name them
"""
