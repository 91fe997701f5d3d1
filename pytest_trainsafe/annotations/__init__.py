"""Annotation files: reading them, turning them into Layouts, and writing them.

text, entries   the YAML as plain data, and as typed entries
parse, fields   check the data and build the entries
placed          layouts by a function of the user's
declared        a file's entries, and the Layouts that they declare
lines           the line of an entry, for messages
patterns        finds the entry that applies to a name
extend, write   adds entries to a file
"""
