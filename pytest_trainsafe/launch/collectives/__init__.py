"""What ranks write down of their collectives, and what disagrees between them."""
