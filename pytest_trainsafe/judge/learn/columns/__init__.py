"""Tables as relations read them, by operations on whole columns.

frame    calls grouped by API, distinct features, comparable properties of values
nesting  which calls each call and each change happened in
ranks    which ranks are compared, and how their records are joined
"""
