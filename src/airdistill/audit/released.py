"""What a round releases, recomputed from the plan for comparison with what its ledger charged.

The gains come from the plan's own design. Everything that a guarantee is computed from is written here a second time,
from the theory and not from the code that charges: weights from class counts, sensitivities, counted noise from
|h_j P2_j|²/λ² and σ_n²/λ² (of votes from σ1 and σ2), what correlated noise repeats, and the variance of the received
noise. Four things are taken over: the grid of secure noise, which is an agreement and no formula; the numbers that
define a matrix of correlated noise; counted noise against several antennas; and payloads of the user's own.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from scipy.linalg import solve_triangular

from airdistill.arrays import BoolArray, ComplexArray, FloatArray, divide_or
from airdistill.channel.csi import ChannelError, round_estimate
from airdistill.channel.selective import WideChannel, WideLink, tone_gains
from airdistill.channel.sources import ChannelSource
from airdistill.planning.feature_means import ClusterMeans, FeatureMeans
from airdistill.planning.payloads import ClassMeans, Gradient, PublicPredictions
from airdistill.planning.plan import Plan
from airdistill.planning.teacher_votes import TeacherVotes
from airdistill.planning.transceiver.design import RoundDesign
from airdistill.planning.transceiver.superposed import SuperposedUplink
from airdistill.planning.trusted_uplink import TrustedUplink
from airdistill.planning.updates import Update
from airdistill.planning.waveform import Observation, design_of_round, round_link
from airdistill.privacy.pate import ConfidentGnmax
from airdistill.privacy.sensitivity import SENSITIVITY_MODELS
from airdistill.privacy.trust import TRUST_MODELS
from airdistill.radio.discrete_noise import SecureGrid, secure_grid

_FLOAT_SLACK = 1.02  # of what rounding to the grid adds, for the rounding of floats
_NORM_ROUNDING = 1e-3  # relative, of norms: gradients are clipped in single precision


class Replan:
    """Recomputes the rounds of a plan, in any order."""

    def __init__(self, plan: Plan, source: ChannelSource) -> None:
        self._plan, self._source = plan, source
        self._drifts: list[FloatArray] = []
        self._repeats = Repeats.of(plan)

    def released(self, index: int, spent: FloatArray, entry_key: str) -> Released:
        """Round `index` after earlier rounds have cost `spent` `[device, row]`; the key is that of its ledger entry."""
        plan, channel = self._plan, self._source.round_channel(index)
        known = round_estimate(plan.scenario, channel, index)
        planned, uplink = design_of_round(plan, self._source, known, index, spent)
        on_grid = plan.scenario.privacy.noise == "secure" and plan.uplink.uses_radio
        grid = secure_grid(plan, planned, known, index) if on_grid else None
        rest = (self._drift(index), grid, entry_key, self._repeats, self._source, uplink.observation)
        return Released(plan, index, channel, known, planned, *rest)

    def _drift(self, index: int) -> FloatArray:
        """D_t of theory section 1, `[device, 1]`: how far one record has moved the parameters when round t starts."""
        payload = self._plan.uplink.payload
        if not self._drifts:
            self._drifts.append(np.zeros((self._plan.fleet.num_devices, 1)))
        if isinstance(payload, ClassMeans):
            while len(self._drifts) < index:
                self._drifts.append(_moved_on(self._drifts[-1], len(self._drifts), payload))
        return self._drifts[min(index, len(self._drifts)) - 1]


@dataclass(frozen=True)
class Repeats:
    """What correlated noise does over the rounds of a plan, by dense matrices: E `[round, round]`, and the weights
    `[round, device]` of all devices, which join by the plan's schedule."""

    matrix: FloatArray
    weights: FloatArray

    @classmethod
    def of(cls, plan: Plan) -> Repeats | None:
        """None if the plan's noise is independent."""
        stated = plan.uplink.correlation
        if stated is None:
            return None
        lags = np.subtract.outer(np.arange(plan.num_rounds), np.arange(plan.num_rounds))
        factors = np.zeros(plan.num_rounds)  # by lag
        for lag in range(1, plan.num_rounds):
            if stated.kind == "banded":
                factors[lag] = stated.weights[lag - 1] if lag <= len(stated.weights) else 0.0
            else:
                factors[lag] = sum(w * d ** (lag - 1) for w, d in zip(stated.weights, stated.decays, strict=True))
        factors[0] = 1.0
        matrix = np.where(lags >= 0, factors[np.abs(lags)], 0.0)
        each, participation = np.asarray(plan.uplink.nominal_weights[:, 0]), plan.uplink.participation
        masks = [participation.mask(index) for index in range(1, plan.num_rounds + 1)]
        joined = np.stack([np.ones(len(each), dtype=bool) if mask is None else mask for mask in masks])
        kept = np.where(joined, each, 0.0)
        return cls(matrix, kept / kept.sum(axis=1, keepdims=True))

    def carried(self, index: int) -> FloatArray:
        """The weights with which a round reveals earlier vectors, `[device, 1]`."""
        return np.asarray(self.matrix[index - 1, : index - 1] @ self.weights[: index - 1])[:, None]

    @cached_property
    def variances(self) -> FloatArray:
        """Of the noise of each round, over that of its new part, `[round]`."""
        return np.asarray((solve_triangular(self.matrix, np.eye(len(self.matrix)), lower=True) ** 2).sum(axis=1))

    @property
    def fewer_draws(self) -> float:
        """By what factor the squares of correlated noise tell less of its variance than independent ones: Σρ²."""
        noise = solve_triangular(self.matrix, np.eye(len(self.matrix)), lower=True)
        noise /= np.linalg.norm(noise, axis=1, keepdims=True)
        return float(((noise @ noise.T) ** 2).sum() / len(noise))


def _moved_on(drift: FloatArray, index: int, payload: ClassMeans) -> FloatArray:
    """D_{t+1} from D_t, after round t."""
    how, samples = payload.dynamics, payload.fleet.class_counts.sum(axis=1, keepdims=True).astype(np.float64)
    batch = samples if how.local_epochs == 0 else np.minimum(how.batch_size, samples)
    steps = np.ceil(samples / batch)
    last = samples - (steps - 1) * batch
    if how.optimizer != "sgd":
        return np.full_like(drift, np.inf)  # no bound is known
    lr = how.initial_lr / np.sqrt(index) if how.schedule == "inverse_sqrt" else how.initial_lr
    with np.errstate(over="ignore", invalid="ignore"):
        growth = 1 + lr * how.grad_lipschitz
        # The record is in one batch; in the last, smaller batch it weighs more, and no step follows.
        step = 2 * lr * how.grad_norm_bound * np.maximum(growth ** (steps - 1) / batch, 1 / last)
        for _ in range(max(1, how.local_epochs)):
            drift = np.where(drift > 0, growth**steps * drift, 0.0) + step
    return drift


def _moved_features(counts: FloatArray, model: str, payload: FeatureMeans) -> float:
    """How far one device's feature means move, from its class counts n_k and theory section 10."""
    held, samples, weight = counts[counts > 0], counts.sum(), payload.count_norm
    # Two vectors are opposite at worst; without negative entries, as shares of clusters are, at right angles.
    apart = np.sqrt(2) if isinstance(payload, ClusterMeans) else 2.0
    whole, clip = apart * payload.norm_bound, payload.sample_bound / np.sqrt(samples)
    if model == "device":
        return float(np.hypot(whole, np.sqrt(2) * weight))
    if weight == 0:  # declared counts: a record of class k becomes another one, of class k or l
        classes = np.eye(len(held), dtype=bool)
        moved = np.where(classes, apart / np.sqrt(held), np.sqrt(np.add.outer(1 / held, 1 / held)))
        return min(whole, float(clip * moved.max()))
    # With counts of its own a device may have one sample of a class; a label that changes moves two weights as well.
    relabelled = np.hypot(min(whole, np.sqrt(2) * clip), weight * np.sqrt(2 / samples))
    return float(max(min(whole, apart * clip), relabelled))


def _moved_votes(settings: ConfidentGnmax) -> float:
    """How far one device's votes move what N checks and A answers reveal, in units in which all noise is σ2."""
    answers = 2.0 * settings.most_answers  # a vote leaves one count and joins another
    checks = settings.num_queries / settings.threshold_noise**2 if settings.vote_noise > 0 else 0.0
    return float(np.sqrt(answers + checks * settings.vote_noise**2))


@dataclass(frozen=True)
class Released:
    """One round: its channel, what is known of it, the planned gains, and what the theory makes of them."""

    plan: Plan
    index: int
    channel: ComplexArray
    known: ComplexArray
    planned: RoundDesign
    drift: FloatArray
    grid: SecureGrid | None
    entry_key: str
    repeats: Repeats | None
    source: ChannelSource
    observation: Observation

    @cached_property
    def design(self) -> RoundDesign:
        """The gains that are really sent: a grid moves noise that is too small for it to other devices."""
        if self.grid is None:
            return self.planned
        return replace(self.planned, noise_gain=self.grid.deviation * self.grid.unit)

    @property
    def _tdma(self) -> bool:
        return self.plan.uplink.uses_tdma

    @property
    def _probability(self) -> float:
        return self.plan.uplink.participation.signal_probability

    @cached_property
    def sent(self) -> BoolArray:
        """The rows that are sent, `[row]`; with TDMA `[device, row]`."""
        return np.asarray(self.design.rx_scale > 0)

    @cached_property
    def nominal(self) -> FloatArray:
        """w of a round that all devices join, `[device, row]`: B_i^k/B^k, B_i/B, or 1/M."""
        payload, counts = self.plan.uplink.payload, self.plan.fleet.class_counts.astype(np.float64)
        if isinstance(payload, ClassMeans):
            return divide_or(counts, counts.sum(axis=0), 0.0)
        if isinstance(payload, Gradient):
            return np.asarray(counts.sum(axis=1, keepdims=True) / counts.sum())
        if isinstance(payload, PublicPredictions | FeatureMeans | Update | TeacherVotes):
            return np.full((len(counts), 1), 1.0 / len(counts))
        return self.plan.uplink.nominal_weights

    @cached_property
    def weights(self) -> FloatArray:
        """w of this round, `[device, row]`: those of the devices that send, scaled to the sum of all again.

        With secret participation the server divides the sum by the probability of a signal.
        """
        if self.plan.uplink.participation.changes_weights:
            return self.plan.uplink.weights(self.index)
        active = self._active()
        kept = self.nominal if active is None else np.where(active[:, None], self.nominal, 0.0)
        return divide_or(kept, kept.sum(axis=0), 0.0) / self._probability

    def _active(self) -> BoolArray | None:
        """The devices that join and whose channel reaches the truncation threshold, `[device]`; None for all."""
        uplink, joined = self.plan.uplink, self.plan.uplink.participation.mask(self.index)
        if not isinstance(uplink, SuperposedUplink) or uplink.truncation == 0:
            return joined
        strong = np.abs(self.known) ** 2 >= uplink.truncation
        active = strong if joined is None else strong & joined
        return np.asarray(active & (np.count_nonzero(active) >= uplink.min_devices))

    @property
    def carried_weights(self) -> FloatArray | None:
        """With correlated noise the weights with which the round reveals earlier vectors, `[device, row]`."""
        return None if self.repeats is None else self.repeats.carried(self.index)

    @cached_property
    def sensitivities(self) -> dict[str, FloatArray]:
        """s by model, `[device, row]`, with what rounding to the grid of secure noise adds."""
        found = {model: self._sensitivity(model) for model in SENSITIVITY_MODELS}
        if self.grid is None:
            return found
        # With TDMA the server applies the weights to what it has received.
        weights = np.ones_like(self.weights) if self._tdma else self.weights
        amplitude = np.where(self.design.signal_gain != 0, weights, 0.0)
        moved: FloatArray = _FLOAT_SLACK * np.sqrt(self.grid.vector_length) * self.grid.spacing
        return {model: bound + divide_or(moved, amplitude, 0.0) for model, bound in found.items()}

    def _sensitivity(self, model: str) -> FloatArray:
        """s without a grid, `[device, row]`."""
        payload, counts = self.plan.uplink.payload, self.plan.fleet.class_counts.astype(np.float64)
        samples = counts.sum(axis=1, keepdims=True)
        if isinstance(payload, Gradient):
            return np.asarray(2 * payload.clip_norm / (np.ones_like(samples) if model == "device" else samples))
        if isinstance(payload, PublicPredictions):
            return np.full(samples.shape, np.sqrt(2 * payload.most_answers))
        if isinstance(payload, TeacherVotes):
            return np.full(samples.shape, _moved_votes(payload.settings))
        if isinstance(payload, FeatureMeans):
            return np.array([[_moved_features(each, model, payload)] for each in counts])
        if isinstance(payload, Update):  # updates are 2C apart, and indicators ±τ/2 are τ apart
            return np.full(samples.shape, np.sqrt(4 * payload.clip_norm**2 + payload.indicator**2))
        if not isinstance(payload, ClassMeans):
            return self.plan.uplink.sensitivity(model, self.index)
        root, moved = float(np.sqrt(2)), np.zeros_like(counts)
        if model == "paper":
            moved = root / samples
        elif model == "device":
            moved = np.full_like(samples, root)
        else:
            moved = divide_or(np.array(root), counts, 0.0)
        if model == "trajectory":
            with np.errstate(over="ignore"):
                moved = np.minimum(root, moved + payload.dynamics.model_lipschitz * self.drift)
        return np.where(counts > 0, moved, 0.0)

    @cached_property
    def _own(self) -> FloatArray:
        """|h_i P2_i|²/λ² by the channel as it is known, `[device, row]`, in units of the estimate."""
        gain = self.known[:, None] * self.design.noise_gain
        return np.abs(gain) ** 2 / self._scale_sq

    @cached_property
    def _scale_sq(self) -> FloatArray:
        """λ², and 1 where nothing is sent."""
        return np.where(self.sent, self.design.rx_scale, 1.0) ** 2

    @cached_property
    def counted(self) -> dict[str, FloatArray]:
        """c by trust model, `[device, row]`: infinite for rows that are not sent."""
        uplink = self.plan.uplink
        if isinstance(uplink, TrustedUplink):  # whoever does not trust the aggregator has votes without noise
            none = np.zeros_like(self.nominal)
            return {**dict.fromkeys(TRUST_MODELS, none), uplink.trust: np.full_like(none, self.noise_var()[0])}
        if self.design.combiner is not None:
            return {name: uplink.noise_by_trust(self.design, self.known)[name] for name in TRUST_MODELS}
        own, receiver = self._own, uplink.channel_noise_var / self._scale_sq
        if self.repeats is not None:  # only new noise counts, and the receiver noise is not correlated
            own, receiver = own / self.repeats.variances[self.index - 1], np.zeros_like(receiver)
        others = own if self._tdma else np.broadcast_to(own.sum(axis=0), own.shape)
        error = ChannelError.of(self.plan.scenario)
        if not error.exact:
            # Theory section 1: only circular noise of other devices counts, and only what any error leaves of it.
            least = (1 - error.limit) ** 2
            others = others * least / (1 + error.limit) ** 2 if self.design.noise_axes == 2 else own
            receiver = receiver * least * (self.plan.scenario.radio.noise == "complex")
        if self.observation.is_partial:  # through a waveform signals may be stronger, and others' noise weaker
            stronger = (1 + self.observation.limit) ** 2
            others = others * self.observation.kept / (stronger * self.observation.fleet_factor)
            receiver = receiver / (stronger * self.observation.receiver_factor)
            if self.plan.scenario.privacy.trust == "own_noise":  # nothing else was bounded
                others, receiver = own, np.zeros_like(receiver)
        counted = {"receiver_noise": others + receiver, "fleet_noise": others, "own_noise": own}
        squared = self.nominal**2 if self._tdma else np.ones(())
        return {
            name: np.where(self.sent, squared * np.where(self.sent, noise, 0.0), np.inf)
            for name, noise in counted.items()
        }

    def predicted_noise_var(self) -> FloatArray:
        """v of every row by the channel as it is known, `[row]`, with the expected error of misalignment."""
        if isinstance(self.plan.uplink, TrustedUplink):
            return self.noise_var()
        arriving = np.abs(self._combined(self.known) * self.design.noise_gain) ** 2
        error, payload = ChannelError.of(self.plan.scenario), self.plan.uplink.payload
        if self.observation.misalignment > 0:
            power = payload.largest_norm**2 / payload.vector_length
            alone, together = (self.weights**2).sum(axis=0), self.weights.sum(axis=0) ** 2
            lost = self.observation.misalignment * alone + self.observation.common_loss**2 * (together - alone)
            return np.asarray(self._of_rows(arriving) + lost * power)
        if error.exact:
            return self._of_rows(arriving)
        share = (self.weights**2).sum(axis=0) * payload.largest_norm**2 / payload.vector_length
        added = 0.5 * error.misalignment
        artificial = self.design.noise_axes * arriving.sum(axis=0) / self._scale_sq
        return np.where(self.sent, self._of_rows(arriving) + added * (artificial + share), np.inf)

    def noise_var(self) -> FloatArray:
        """The variance of the noise that is received, `[row]`, without misaligned signals; what is certain of it."""
        uplink = self.plan.uplink
        if isinstance(uplink, TrustedUplink):  # of a mean vote
            return np.array([(uplink.payload.settings.vote_noise / self.plan.fleet.num_devices) ** 2])
        arriving = self.arriving_gain() * np.sqrt(self.observation.kept)
        return self._of_rows(np.abs(arriving) ** 2 if self.design.noise_axes == 2 else arriving.real**2)

    def arriving_gain(self) -> ComplexArray:
        """h P2 of every device by the true channel, `[device, row]`."""
        return np.asarray(self._combined(self.channel) * self.design.noise_gain)

    def _combined(self, channel: ComplexArray) -> ComplexArray:
        """h, or f^H h with several antennas, `[device, row]`."""
        combiner = self.design.combiner
        return channel[:, None] if combiner is None else np.asarray(channel @ combiner.conj().T)

    def _of_rows(self, arriving: FloatArray) -> FloatArray:
        """The variance of a row of the estimate from what arrives of each device's noise, `[device, row]`."""
        receiver = self.plan.uplink.channel_noise_var
        if not self._tdma:
            return np.where(self.sent, (arriving.sum(axis=0) + receiver) / self._scale_sq, np.inf)
        held, each = self.nominal > 0, np.where(self.sent, (arriving + receiver) / self._scale_sq, np.inf)
        weighed = np.where(held, self.nominal**2 * np.where(held, each, 0.0), 0.0)
        return np.where(held.any(axis=0), weighed.sum(axis=0), np.inf)

    def planned_power_w(self) -> float:
        """The fleet's mean power, W: with secret participation the mean over all masks, which reveals none."""
        signal, noise = np.abs(self.planned.signal_gain) ** 2, np.abs(self.planned.noise_gain) ** 2
        power = self._probability * signal + self.planned.noise_axes * noise
        return float(power.sum() / power.shape[1])

    def largest_energy(self, chance: float) -> float:
        """Σ|x|²/row/entry that devices exceed only with this chance if every vector keeps its norm bound.

        ‖x‖ ≤ ‖signal‖ + ‖noise‖; the noise is a weighted sum of χ² variables (Laurent and Massart 2000, lemma 1).
        """
        signal, length = (np.abs(self.design.signal_gain) ** 2).sum(), self.plan.uplink.vector_length
        each = np.abs(self.design.noise_gain) ** 2
        weight, degrees, tail = each / length, length * self.design.noise_axes, -np.log(chance)
        mean, spread = (weight * degrees).sum(), np.sqrt((weight**2 * degrees).sum())
        noise = mean + 2 * spread * np.sqrt(tail) + 2 * weight.max() * tail
        return float((np.sqrt(signal) * (1 + _NORM_ROUNDING) + np.sqrt(noise)) ** 2 / each.shape[1])

    @cached_property
    def waveform_link(self) -> WideLink | None:
        """The links of a round that was carried sample by sample; None for other media."""
        if self.plan.scenario.air.medium != "waveform":
            return None
        assert isinstance(self.source, WideChannel)
        return round_link(self.plan.scenario, self.plan.uplink, self.source, self.index)

    def _largest_change(self, link: WideLink) -> FloatArray:
        """max |H − Ĥ||e| over the tones and symbols of the round, `[device]`."""
        assert isinstance(self.source, WideChannel)
        taps = self.source.taps_of_symbols(self.index, self.plan.uplink.num_slots)
        changes = (tone_gains(self.source.grid, taps) - link.known[:, None]) * link.equaliser[:, None]
        return np.asarray(np.abs(changes).max(axis=(1, 2)))

    def largest_misalignment(self) -> FloatArray:
        """A bound on ‖Σ_i Re(h_i/ĥ_i − 1) w_i q_i‖, `[row]`: what misaligned signals add to the received noise."""
        if (link := self.waveform_link) is not None:
            largest = np.abs(link.attenuation - 1).max(axis=1) + self._largest_change(link)
            return np.asarray(largest @ self.weights * self.plan.uplink.payload.largest_norm)
        if self.known is self.channel:
            return np.zeros(self.design.noise_gain.shape[1])
        has_channel = self.known != 0
        turned = np.where(has_channel, self.channel, 1.0) / np.where(has_channel, self.known, 1.0)
        return np.asarray(np.abs(turned.real - 1) @ self.weights * self.plan.uplink.payload.largest_norm)
