"""The systems that can be run, each a short file that composes the rooms above."""

from airdistill.schemes.base import Outcome, Round, Scheme
from airdistill.schemes.registry import SCHEMES, load_scheme, plan_run

__all__ = ["SCHEMES", "Outcome", "Round", "Scheme", "load_scheme", "plan_run"]
