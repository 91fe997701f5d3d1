"""What is asked: graphs, the relations of their inputs, and those that results must have.

problem   the graphs with what the user says of them
declared  the relations that a user declares, from YAML
propose   relations of inputs that names and shapes suggest
expected  the relations that results must have
"""
