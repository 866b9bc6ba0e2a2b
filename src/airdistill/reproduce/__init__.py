"""Recompute the paper's figures and check its claims against them."""
