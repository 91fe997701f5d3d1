"""The types that every stage shares.  Of this package, imports `errors` and `wings` alone.

axes, point      the axes of a sweep, and one value for each
mesh             the axes that multiply into the world size, and the positions of ranks
usage            texts for error messages: quoted input, listed words, the nearest known name
tensor_id        the name of a logical tensor, the same for every layout
layout, indices  how a rank's local tensor maps into the logical tensor, and the index arithmetic
finding          one judged fact, and what it is about
rungs            the number systems in which tests are judged, and their arithmetic
code_files       classifies a file: the project's, this package's, torch's, installed, standard
links            the folders that links in a checkout lead to
untrusted        safe reading of files that another process may have written
cut_text         text that is safe to send, print and keep
"""
