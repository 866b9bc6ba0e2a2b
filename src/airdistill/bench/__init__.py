"""Benchmark of the learning engines."""
