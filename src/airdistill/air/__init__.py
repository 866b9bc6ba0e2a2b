"""From every device's knowledge to the server's estimate: transmit, superpose, receive."""

from airdistill.air.exchange import Heard, error_free, over_the_air
from airdistill.air.receivers import Estimate, Receiver
from airdistill.air.signal import ideal_knowledge, receive, superpose, transmit

__all__ = [
    "Estimate",
    "Heard",
    "Receiver",
    "error_free",
    "ideal_knowledge",
    "over_the_air",
    "receive",
    "superpose",
    "transmit",
]
