"""The systems that can be run: each is a short class that composes planning, learning and the charged round."""

from airdistill.schemes.base import Outcome, Round, Scheme
from airdistill.schemes.registry import SCHEMES, load_scheme, plan_run

__all__ = ["SCHEMES", "Outcome", "Round", "Scheme", "load_scheme", "plan_run"]
