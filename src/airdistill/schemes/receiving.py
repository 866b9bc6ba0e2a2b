"""The receiver that a plan's scenario asks for, at the start of a run."""

from __future__ import annotations

from airdistill.air.receivers import Receiver, make_receiver
from airdistill.codesign.plan import Plan
from airdistill.data.public import PublicSet
from airdistill.errors import InputError
from airdistill.learning.fleet import Engine
from airdistill.schemes.public_receiver import public_receiver


def receiver_of(plan: Plan, public: PublicSet | None, engine: Engine) -> Receiver | None:
    """None where what is received is taken as it comes: gradients, and class means with a linear receiver."""
    learning, uplink = plan.scenario.learning, plan.uplink
    if uplink.kind == "public_knowledge":
        assert public is not None  # the scenario declares one, or there would be no such plan
        return public_receiver(plan, public, engine)
    if uplink.payload != "knowledge":
        return None
    if learning.receiver == "learning":
        rule = "a server learns from predictions on a public set; class means have linear, projected and tracking"
        raise InputError("learning.receiver", learning.receiver, rule)
    return make_receiver(learning.receiver, uplink.num_rows, learning.knowledge_drift)
