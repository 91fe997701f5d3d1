"""What is noted of a training, so that another run of the same program can be compared with it."""

#: So many rounds of each phase of a training are looked at.
ROUNDS = 8
