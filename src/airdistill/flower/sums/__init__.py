"""Secure sums: the server learns the sum of the devices' vectors and nothing else."""
