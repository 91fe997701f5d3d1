"""Finds relations: sequential tensors, cut in every way, are looked up among the ranks' tensors.

content   what a tensor holds, as a key: equal contents have equal keys
index     the ranks' tensors and their sums, by content
cuts      the ways to cut a tensor over axes of the mesh
find      all relations of one sequential tensor
nearest   what a tensor without a relation resembles: a multiple, a sum of two
rescaled  where the sequential graph multiplies such a tensor by a constant later
frontier  the first operator without a relation
"""
