"""From every device's knowledge to the server's estimate: transmit, superpose, receive."""

from airdistill.radio.receivers import Estimate, Receiver
from airdistill.radio.superposition import (
    Reception,
    error_free,
    ideal_knowledge,
    over_the_air,
    receive,
    superpose,
    transmit,
)

__all__ = [
    "Estimate",
    "Receiver",
    "Reception",
    "error_free",
    "ideal_knowledge",
    "over_the_air",
    "receive",
    "superpose",
    "transmit",
]
