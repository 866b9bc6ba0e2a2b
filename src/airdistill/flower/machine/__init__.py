"""A federation on one machine: Flower's programs as processes, their keys and certificates, a line to them."""
