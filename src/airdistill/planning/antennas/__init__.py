"""Designs for a server with several antennas."""
