"""The relations of the package: the forms that rules can have, one file each.

consistent  variables are equal on ranks
agreement   arguments agree, or differ, between ranks
membership  the optimizer holds the model's parameters
contain     a call contains another call or a change
within      a variable changes only inside an API
renewed     gradients are cleared between two steps
sequence    what happens between two calls, and in which order
argument    arguments are constant, steady, fresh or equal to each other
output      results compared with arguments, and bounds
periodic    variables change at least once in every N steps, or never
numeric     counters, and bounds of norms
"""
