"""The watched model: its parts, the canonical names in it, and its initial parameters.

parts        a model in parts, under the names that the whole model gives
inputs       what a program gives its model
names        the module and parameter names that a single device would use
initialize   gives each parameter a value that is a function of its name
consistent   such values
"""
