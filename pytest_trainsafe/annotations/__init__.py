"""Annotation files: read, resolved to Layouts, and written.

text, entries   the YAML as plain data, and as typed entries
declared        the entries of a file, and the Layouts that they declare
patterns        which entry is a name's
resolve         the Layout of a parameter, from the first source that knows it
extend, write   adds entries to a file
"""
