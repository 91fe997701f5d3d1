"""Annotation files: read, turned into Layouts, and written.

text, entries   the YAML as plain data, and as typed entries
declared        the entries of a file, and the Layouts that they declare
patterns        which entry is a name's
extend, write   adds entries to a file
"""
