"""A federation on one machine: Flower's programs as processes, their keys and certificates, and their control."""
