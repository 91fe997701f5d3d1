"""The ground floor: what every stage speaks of.  Imports nothing else of this package.

axes, point      the axes of a sweep, and one value of each
mesh             the axes that multiply into the world size, and where ranks stand
usage            input, lists and near misses as error messages quote them
tensor_id        the layout-free name of a logical tensor
layout, indices  how a rank's tensor maps into the logical one, and the arithmetic of that
finding          one judged fact, and what it is about
precision        the number systems of the ladder, and how each rounds
code_files       whose code a file is
untrusted        reads files that somebody else may have written
cut_text         text that is safe to send, print and keep
"""
