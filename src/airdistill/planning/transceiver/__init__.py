"""Gains of one round: required noise, trust models, closed-form designs."""
