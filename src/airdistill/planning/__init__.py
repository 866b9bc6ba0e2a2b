"""Communication and learning designed together: rounds, transceivers and the plan that holds them."""

from airdistill.planning.convergence.gap import LearningConstants, paper_rounds
from airdistill.planning.convergence.rounds import exact_rounds
from airdistill.planning.plan import Plan, plan
from airdistill.planning.transceiver.design import RoundDesign, design_round

__all__ = ["LearningConstants", "Plan", "RoundDesign", "design_round", "exact_rounds", "paper_rounds", "plan"]
