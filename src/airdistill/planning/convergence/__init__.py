"""The convergence gap as a function of the number of rounds, and the errors of receivers."""
