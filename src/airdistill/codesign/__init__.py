"""Communication and learning designed together: rounds, transceivers and the plan that holds them."""

from airdistill.codesign.constants import LearningConstants
from airdistill.codesign.paper_rounds import paper_rounds
from airdistill.codesign.plan import Plan, plan
from airdistill.codesign.rounds import exact_rounds
from airdistill.codesign.transceiver import RoundDesign, design_round

__all__ = ["LearningConstants", "Plan", "RoundDesign", "design_round", "exact_rounds", "paper_rounds", "plan"]
