"""From every device's vectors to the server's estimate: charge, transmit, superpose, receive."""

from airdistill.radio.charged_round import ChargedRound, charge_round
from airdistill.radio.receivers import Estimate, Receiver
from airdistill.radio.superposition import Reception, ideal_knowledge, over_the_air, receive, superpose, transmit

__all__ = [
    "ChargedRound",
    "Estimate",
    "Receiver",
    "Reception",
    "charge_round",
    "ideal_knowledge",
    "over_the_air",
    "receive",
    "superpose",
    "transmit",
]
