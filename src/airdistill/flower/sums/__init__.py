"""Secure sums: the server learns only the sum of the devices' vectors."""
