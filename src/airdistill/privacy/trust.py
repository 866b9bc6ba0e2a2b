"""Trust: whose noise counts as protection, the optimal design under each answer, and how it is stated.

In units of the estimate r̂ = Re(r)/λ a device requires counted noise `required[device, row]`. Each trust model gives the
closed form that minimises v_k = (Σ_j|h_jP2_j|² + σ_n²)/λ_k² under the power limits. K in the formulas stands for
`Links.energy_slots`.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from airdistill.arrays import FloatArray, divide_or, largest
from airdistill.errors import InputError, described
from airdistill.plugins import load_object
from airdistill.privacy.assumptions import Assumption

if TYPE_CHECKING:
    from airdistill.planning.transceiver.design import Links

_CHUNK = 1 << 20  # numbers that a temporary array over draws × devices × rows may hold
_OWN_SLOTS = "With TDMA the slots of a device contain no noise but its own: it counts on that only."
_NO_MORE_ANTENNAS = (
    "Over a radio the server must have no more antennas than were planned for, because more antennas can tell devices "
    "apart."
)
_UNCOUNTED = {  # what to do if a user's own model counts more than its flags allow
    "own_noise": "; set counts_others if other devices' noise counts, counts_receiver if the receiver noise does",
    "fleet_noise": "; set counts_receiver if the receiver noise counts too",
    "receiver_noise": "; there is no more noise",
}


class TrustStatement:
    """Which noise counts, as statements and certificates need it.

    `counts_receiver`: the receiver noise counts. `counts_others`: noise that other devices add counts. `sentence`
    states it to the reader; `assumption` is its short name if it can turn out false.
    """

    name: str  # of a user's own model the reference by which it was found
    sentence: ClassVar[str]
    assumption: ClassVar[str | None] = None
    counts_receiver: ClassVar[bool] = False
    counts_others: ClassVar[bool] = False

    @property
    def counts_own_only(self) -> bool:
        return not (self.counts_receiver or self.counts_others)

    def statement(self, tdma: bool) -> str:
        return _OWN_SLOTS if tdma and self.counts_others and not self.counts_receiver else self.sentence

    def assumptions(self, tdma: bool) -> list[Assumption]:
        """What can turn out false."""
        if self.assumption is None or (tdma and not self.counts_receiver):
            return []
        found = [Assumption(self.assumption, self.sentence)]
        counts_fleet = self.counts_others and not self.counts_receiver
        if counts_fleet and _NO_MORE_ANTENNAS not in self.sentence:
            found.append(Assumption("number of antennas", _NO_MORE_ANTENNAS))
        return found

    def needs_aligned_channels(self, tdma: bool) -> bool:
        """Whether protection depends on the channel estimates. A device's own noise has the phase of its signal."""
        return self.counts_receiver or (self.counts_others and not tdma)


class TrustedAggregator(TrustStatement):
    """A party that receives the devices' vectors without noise and adds the noise itself. Nothing goes over the air."""

    name = "trusted_aggregator"
    sentence = (
        "The guarantee holds if the aggregator is trusted: it receives every device's votes without noise over a "
        "secure channel, adds the noise, and reveals nothing but its answers."
    )
    assumption = "trusted aggregator"

    @property
    def counts_own_only(self) -> bool:
        return False


class DesignedNoise(NamedTuple):
    """The noise of an optimal design.

    λ² and v `[row]`, |h_jP2_j|² as received and what each device may count of v, `[device, row]`. λ is zero and v
    infinite for a row that cannot be sent.
    """

    scale_sq: FloatArray
    effective: FloatArray
    received: FloatArray
    counted: FloatArray


class Trust(TrustStatement, ABC):
    """Whose noise counts for signals on the air. A model of your own is a class with these names and methods."""

    def designed(self, links: Links, required: FloatArray) -> DesignedNoise:
        """The noise of the optimal design of one round."""
        inverse_scale = self._scale(links, required)
        effective = self.effective_noise_var(links, required, inverse_scale)
        sent = np.isfinite(effective)
        scale_sq = np.where(sent, 1.0 / np.where(sent, inverse_scale, 1.0), 0.0)
        received, counted = self.received_noise(links, required, scale_sq), self.counted_noise_var(required, effective)
        self._check_shape("received_noise", received, required.shape)
        self._check_shape("counted_noise_var", counted, required.shape)
        return DesignedNoise(scale_sq, effective, received, counted)

    def effective_noise_var(
        self, links: Links, required: FloatArray, inverse_scale: FloatArray | None = None
    ) -> FloatArray:
        """v_k of the optimal design, `[..., row]`; infinite for a row that cannot be sent."""
        if inverse_scale is None:
            inverse_scale = self._scale(links, required)
        sendable = (inverse_scale > 0) & np.isfinite(inverse_scale)
        # 0 · inf is NaN: rows that cannot be sent are masked, not multiplied.
        from_channel = links.channel_noise_var * np.where(sendable, inverse_scale, 0.0)
        artificial = self.artificial_noise_var(required)
        self._check_shape("artificial_noise_var", artificial, required.shape[-1:], inverse_scale.shape)
        return np.where(sendable, artificial + from_channel, np.inf)

    def _scale(self, links: Links, required: FloatArray) -> FloatArray:
        made = self.inverse_scale_sq(links, required)
        self._check_shape("inverse_scale_sq", made, (*links.power_w.shape[:-1], required.shape[-1]))
        return made

    def _check_shape(self, method: str, made: FloatArray, *shapes: tuple[int, ...]) -> None:
        """Raise `InputError` for another shape than these: the method can be a user's own."""
        if np.shape(made) not in shapes:
            stated = f"`{method}` must have shape {list(shapes[0])}, not {list(np.shape(made))}"
            raise InputError("privacy.trust", self.name, stated)

    @abstractmethod
    def counted(self, own: FloatArray, together: FloatArray, receiver_var: float | FloatArray) -> FloatArray:
        """The received noise that counts for each device, `[device, row]`.

        From |h_iP2_i|² of each device `[device, row]`, their sum `[row]` (with TDMA `own` again), and σ_n².
        """

    @abstractmethod
    def inverse_scale_sq(self, links: Links, required: FloatArray) -> FloatArray:
        """1/λ_k² of the optimal design, `[..., row]`."""

    @abstractmethod
    def artificial_noise_var(self, required: FloatArray) -> FloatArray:
        """The part of v_k that the devices add, `[row]`, or `[..., row]` for requirements by draw."""

    @abstractmethod
    def received_noise(self, links: Links, required: FloatArray, scale_sq: FloatArray) -> FloatArray:
        """The noise of each device as received, |h_jP2_j|² `[device, row]`."""

    @abstractmethod
    def counted_noise_var(self, required: FloatArray, effective: FloatArray) -> FloatArray:
        """What each device may count of the design's noise v `[row]`, `[device, row]`."""

    def for_receiver(self, channel_noise_var: float) -> Trust:
        """The model to plan with for a receiver of this noise. A noiseless receiver protects no device: the fleet
        must add the noise."""
        return FleetNoise() if self.counts_receiver and channel_noise_var == 0 else self


class ReceiverNoise(Trust):
    """The paper's model: all noise at the receiver counts. Backing the power off is enough, and cheapest: P2 = 0."""

    name = "receiver_noise"
    sentence = "The receiver noise is counted: a server with a quieter receiver sees more than is guaranteed."
    assumption = "receiver noise"
    counts_receiver = True
    counts_others = True

    def counted(self, own: FloatArray, together: FloatArray, receiver_var: float | FloatArray) -> FloatArray:  # noqa: ARG002
        return together + receiver_var

    def inverse_scale_sq(self, links: Links, required: FloatArray) -> FloatArray:
        # λ² = min(cap, σ_n²/req)
        return np.asarray(np.maximum(links.inverse_cap, largest(required) / links.channel_noise_var))

    def artificial_noise_var(self, required: FloatArray) -> FloatArray:
        return np.zeros(required.shape[-1])

    def received_noise(self, links: Links, required: FloatArray, scale_sq: FloatArray) -> FloatArray:  # noqa: ARG002
        return np.broadcast_to(0.0, required.shape)

    def counted_noise_var(self, required: FloatArray, effective: FloatArray) -> FloatArray:
        return np.broadcast_to(effective, required.shape)


class FleetNoise(Trust):
    """The server owns the receiver: the noise that the devices add counts, and all devices add to it."""

    name = "fleet_noise"
    sentence = (
        "The devices' noise is counted, and the receiver noise is not: every device must add the noise that it was "
        f"told to add. {_NO_MORE_ANTENNAS}"
    )
    assumption = "honest fleet"
    counts_others = True

    def counted(self, own: FloatArray, together: FloatArray, receiver_var: float | FloatArray) -> FloatArray:  # noqa: ARG002
        return together

    def inverse_scale_sq(self, links: Links, required: FloatArray) -> FloatArray:
        # λ² = min(cap, Σ_j|h_j|²P_j/(req + Σ_j w_j²/K)), with 2 req if noise goes on both axes.
        noise = links.noise_axes * largest(required)
        needed = np.where(links.signal_share > 0, noise + links.signal_share, 0.0)
        total_w = links.power_w.sum(axis=-1)[..., None]
        return np.maximum(links.inverse_cap, _quotient(needed, total_w))

    def artificial_noise_var(self, required: FloatArray) -> FloatArray:
        return largest(required)

    def received_noise(self, links: Links, required: FloatArray, scale_sq: FloatArray) -> FloatArray:
        # In proportion to the power that its signal leaves a device: |h_j|²P_j − λ²w_j²/K.
        headroom = links.weights**2
        headroom *= -scale_sq / links.energy_slots
        headroom += links.power_w[:, None]
        np.maximum(headroom, 0.0, out=headroom)
        total = headroom.sum(axis=0)
        headroom *= largest(required) * scale_sq / np.where(total > 0, total, 1.0)  # without headroom no noise
        return headroom

    def counted_noise_var(self, required: FloatArray, effective: FloatArray) -> FloatArray:
        strictest = largest(required)
        return np.broadcast_to(np.where(np.isfinite(effective), strictest, np.inf), required.shape)


class OwnNoise(Trust):
    """No other party is trusted: only a device's own noise counts for it.

    A model in which every device is told what to add, whatever counts, is derived from this one: it defines `added` and
    `counted`.
    """

    name = "own_noise"
    sentence = "Each device counts on its own noise only; no other party is trusted."

    def counted(self, own: FloatArray, together: FloatArray, receiver_var: float | FloatArray) -> FloatArray:  # noqa: ARG002
        return own

    def added(self, required: FloatArray) -> FloatArray:
        """The noise variance a_ik that each device adds, in the estimate, `[..., device, row]`."""
        return required

    def inverse_scale_sq(self, links: Links, required: FloatArray) -> FloatArray:
        # λ² = min_i K|h_i|²P_i/(w_i² + K a_ik)
        needed = links.weights**2
        needed /= links.energy_slots
        needed = needed + self.added(required)
        rows = links.power_w.reshape(-1, links.power_w.shape[-1])
        step = max(1, _CHUNK // (needed.shape[-1] * needed.shape[-2]))
        chunks = [
            _quotient(needed if needed.ndim == 2 else needed[part], rows[part, :, None]).max(axis=-2)
            for part in (slice(start, start + step) for start in range(0, len(rows), step))
        ]
        return np.concatenate(chunks).reshape(*links.power_w.shape[:-1], links.num_classes)

    def artificial_noise_var(self, required: FloatArray) -> FloatArray:
        return np.asarray(self.added(required).sum(axis=-2))

    def received_noise(self, links: Links, required: FloatArray, scale_sq: FloatArray) -> FloatArray:  # noqa: ARG002
        return self.added(required) * scale_sq

    def counted_noise_var(self, required: FloatArray, effective: FloatArray) -> FloatArray:
        added, sent = self.added(required), np.isfinite(effective)
        together = added.sum(axis=0)
        from_receiver = np.maximum(np.where(sent, effective, 0.0) - together, 0.0)
        counted = np.broadcast_to(self.counted(added, together, from_receiver), required.shape)
        return counted if sent.all() else np.where(sent, counted, np.inf)


TRUST_MODELS: dict[str, Trust] = {trust.name: trust for trust in (ReceiverNoise(), FleetNoise(), OwnNoise())}
TRUSTED_AGGREGATOR = TrustedAggregator()
_BUILT_IN: dict[str, TrustStatement] = {**TRUST_MODELS, TRUSTED_AGGREGATOR.name: TRUSTED_AGGREGATOR}


def is_built_in(name: str) -> bool:
    """Whether a reader of a ledger has the trust model of that name."""
    return name in _BUILT_IN


def trust_statement(name: str) -> TrustStatement:
    """What can be stated of a trust model by name, or of a user's own by `package.module:Class`."""
    return _BUILT_IN[name] if name in _BUILT_IN else trust_named(name)


@cache
def trust_named(name: str) -> Trust:
    """A trust model of signals on the air by name, or a user's own by `package.module:Class`."""
    if name in TRUST_MODELS:
        return TRUST_MODELS[name]
    if name == TrustedAggregator.name:
        rule = f"nothing but the votes of scheme pate goes to an aggregator: use one of {', '.join(TRUST_MODELS)}"
        raise InputError("privacy.trust", name, rule)
    if ":" not in name:
        rule = f"must be one of {', '.join(TRUST_MODELS)}, or your own as package.module:Class"
        raise InputError("privacy.trust", name, rule)
    found = load_object(name, "privacy.trust")
    if not (isinstance(found, type) and issubclass(found, Trust)):
        raise InputError("privacy.trust", name, "must be a class derived from airdistill.privacy.trust.Trust")
    if inspect.isabstract(found):
        raise InputError("privacy.trust", name, f"must define {', '.join(sorted(found.__abstractmethods__))}")
    try:
        made: Trust = found()
        made.name = name  # not the one of the class that it is derived from
    except Exception as error:  # a user's class can raise any exception
        raise InputError("privacy.trust", name, f"cannot be made without arguments: {described(error)}") from error
    needed = ("sentence",) if made.counts_own_only else ("sentence", "assumption")
    for attribute in needed:
        if not isinstance(getattr(made, attribute, None), str):
            why = "" if attribute == "sentence" else ": the noise of other parties counts, and that can turn out false"
            rule = f"must have the attribute `{attribute}`, which certificates state{why}"
            raise InputError("privacy.trust", name, rule)
    return made


def counted_by_trust(
    own: FloatArray, together: FloatArray, receiver_var: float | FloatArray, declared: str
) -> dict[str, FloatArray]:
    """What every trust model counts of received noise, and the declared one if it is a user's own."""
    counted = {name: trust.counted(own, together, receiver_var) for name, trust in TRUST_MODELS.items()}
    if declared not in TRUST_MODELS:
        trust = trust_named(declared)
        counted[declared] = np.asarray(trust.counted(own, together, receiver_var))
        _check_counted(declared, trust, counted[declared], counted)
    return counted


def _check_counted(name: str, trust: Trust, counted: FloatArray, built_in: Mapping[str, FloatArray]) -> None:
    """Raise unless a user's own model counts no more noise than there is, by its own flags."""
    flags = OwnNoise if trust.counts_own_only else ReceiverNoise if trust.counts_receiver else FleetNoise
    own, most = built_in[OwnNoise.name], built_in[flags.name]
    if counted.shape not in (own.shape, own.shape[1:]):
        expected = f"[device, row] = {list(own.shape)} or [row] = {list(own.shape[1:])}"
        raise InputError("privacy.trust", name, f"`counted` must have shape {expected}, not {list(counted.shape)}")
    wrong = ~((counted >= 0) & (counted <= most * (1 + 1e-9)))
    if wrong.any():
        *_, row = place = np.unravel_index(int(np.argmax(wrong)), wrong.shape)
        limit = f"{np.broadcast_to(most, own.shape).max(axis=0)[row]:.6g}, all that {flags.name} counts"
        rule = f"`counted` is {counted[place]:.6g} in row {row}: must be from 0 to {limit}"
        raise InputError("privacy.trust", name, rule + _UNCOUNTED[flags.name])


def trust_header(name: str) -> dict[str, Any]:
    """What a ledger's header records of a user's own model, whose class a reader may not have; else nothing."""
    if is_built_in(name):
        return {}
    own = trust_named(name)
    flags = {flag: getattr(own, flag) for flag in ("sentence", "assumption", "counts_receiver", "counts_others")}
    return {"trust": flags}


def trust_from(name: str, terms: Mapping[str, Any]) -> TrustStatement:
    """The trust model of a ledger's header, as far as statements go."""
    if name in _BUILT_IN:
        return _BUILT_IN[name]
    stated: type[Trust] = type("StatedTrust", (FleetNoise,), {"name": name, **terms["trust"]})
    return stated()


def _quotient(needed: FloatArray, available: FloatArray) -> FloatArray:
    """needed/available; nothing needed costs nothing even if nothing is available."""
    if np.all(available > 0):
        return np.asarray(needed / available)
    shape = np.broadcast_shapes(needed.shape, available.shape)
    ratio = divide_or(np.broadcast_to(needed, shape), np.broadcast_to(available, shape), np.inf)
    return np.where(needed > 0, ratio, 0.0)
