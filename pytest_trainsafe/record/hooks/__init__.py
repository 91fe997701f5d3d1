"""What is recorded of modules while they run, and the lines of the program that run them."""
