"""The relations of the package: the forms that rules can have, one file each.

A variable is an attribute of a training object, such as the gradient of a parameter.

consistent  a variable has equal values on two ranks
agreement   the ranks call an API with equal, or with different, arguments
membership  the optimizer holds the model's parameters
contain     each call of an API contains a call of another API, or a change of a variable
within      a variable changes only inside calls of an API
renewed     gradients are cleared between two steps of an optimizer
sequence    an API is called between two calls of another API, or before it in each step
argument    an argument is constant, equals that of the previous call, never repeats, or equals
            another argument
output      a result has a property by itself, or compared with an argument
periodic    a variable changes at least once in every N steps, or never
numeric     a counter does not fall, a counter goes up by one, a norm is bounded, or all elements
            of a tensor are finite
conduct     how a loop uses torch, in roles: modes, autocast, slips, graphs
"""
