"""What a scheme is: how it changes the scenario, and how it plays a round."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from airdistill.arrays import BoolArray, ComplexArray, FloatArray
from airdistill.channel.csi import round_estimate
from airdistill.channel.sources import ChannelSource
from airdistill.learning.fleet import LearningFleet
from airdistill.learning.learner import Losses
from airdistill.planning.plan import Plan
from airdistill.planning.transceiver.design import RoundDesign
from airdistill.planning.uplinks import non_private_release, release_of
from airdistill.planning.what_if.participation import hidden_coins_of
from airdistill.privacy.ledger import Ledger
from airdistill.radio.discrete_noise import SecureNoise, release_on_grid, secure_grid
from airdistill.radio.receivers import Receiver
from airdistill.radio.superposition import Noise, Reception, RoundNoise, receiver_noise
from airdistill.scenario.model import Scenario
from airdistill.schemes.payloads import PayloadProtocol, learn_from, payload_protocol, step_size


@dataclass(frozen=True)
class Outcome:
    """A round's result: every device's losses, and what the server heard if anything was sent."""

    losses: Sequence[Losses]
    heard: Reception | None = None


@dataclass(frozen=True)
class Round:
    """What a scheme has to play round `index` with, counted from 1.

    Nothing can be sent without noise, and `noise` writes what it is for into the ledger first; a scheme that sends its
    numbers as they are says so with `release_without_privacy`.
    """

    index: int
    scenario: Scenario
    plan: Plan
    source: ChannelSource
    fleet: LearningFleet
    ledger: Ledger
    receiver: Receiver | None = None

    @property
    def lr(self) -> float:
        """η_t = η0/√t."""
        return step_size(self.scenario, self.index)

    def channel(self) -> ComplexArray:
        """This round's gains, `[device]`."""
        return self.source.round_channel(self.index)

    def known_channel(self) -> ComplexArray:
        """What devices and server know of it."""
        return round_estimate(self.scenario, self.channel(), self.index)

    def design(self) -> RoundDesign:
        """This round's transceiver, from the channel as it is known and what the rounds before have left."""
        return self.plan.design(self.known_channel(), self.index, self.ledger.cost_of_run)

    def noise(self, design: RoundDesign) -> Noise:
        """This round's artificial and receiver noise, once the ledger has charged what the design sends.

        `BudgetExceeded` if a device cannot pay for it.
        """
        radio, length, known = self.scenario.radio, self.plan.uplink.vector_length, self.known_channel()
        drawn_as = (self.scenario.seed, self.index, design, length, radio.noise_power, radio.noise)
        if self.scenario.privacy.noise == "secure":
            grid = secure_grid(self.plan, design, known, self.index)
            self.ledger.charge(release_on_grid(self.plan.uplink, grid, design, known, self.index))
            return SecureNoise(grid, receiver_noise(*drawn_as))
        self.ledger.charge(release_of(self.plan.uplink, design, known, self.index))
        return RoundNoise.seeded(*drawn_as)

    def there(self) -> BoolArray | None:
        """Who sends more than noise, `[device]`, where that is hidden; None where everybody in the design does."""
        coins = hidden_coins_of(self.plan.uplink)
        return None if coins is None else coins.there(self.index)

    def release_without_privacy(self) -> None:
        """Charges the ledger with numbers that go out as they are."""
        self.ledger.charge(non_private_release(self.plan.uplink, self.index))

    def local_knowledge(self) -> FloatArray:
        """Eq. (2) of every device, `[device, class, class]`."""
        return self.fleet.knowledge(for_full_batch=self.scenario.learning.local_epochs == 0)

    def vectors(self) -> FloatArray:
        """What every device has to send, `[device, row, entry]`: whatever the plan says is shared."""
        return self._sharing.vectors(self.fleet, self.index, range(len(self.fleet.learners)))

    def learn(self, received: FloatArray | None) -> Sequence[Losses]:
        """Every device's update from what was broadcast, or without anything on its own samples alone.

        From class means it is one full-batch step (eq. 4), or the scenario's local epochs.
        """
        devices = range(len(self.fleet.learners))
        if received is None:
            return learn_from(self.fleet, self.scenario, self.index, None, devices)
        return self._sharing.learn(self.fleet, self.index, received, devices)

    @property
    def _sharing(self) -> PayloadProtocol:
        return payload_protocol(self.plan)


class Scheme(ABC):
    """A system to run. One of your own is a class with these names in a file of its own.

    `uplink` says what the planner plans for: "knowledge", "public_knowledge", "orthogonal_knowledge" or "gradient".
    `one_model` makes all devices start from the same weights. `inherits` names schemes whose overrides in a scenario
    hold for this one too, before its own. `releases` says what leaves the devices: "private" for what the plan's noise
    hides, "bare" for numbers as they are, "nothing" for nothing.
    """

    name: ClassVar[str]
    uplink: ClassVar[str] = "knowledge"
    one_model: ClassVar[bool] = False
    inherits: ClassVar[tuple[str, ...]] = ()
    releases: ClassVar[Literal["private", "bare", "nothing"]] = "private"

    def adapt(self, scenario: Scenario) -> Scenario:
        """The scenario as this scheme runs it."""
        return scenario

    @abstractmethod
    def play(self, this: Round) -> Outcome:
        """One round."""
