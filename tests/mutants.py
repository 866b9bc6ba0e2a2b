"""Planted bugs: each breaks one thing that a printed guarantee rests on, in the code that a run uses.

A mutant is planted with pytest's monkeypatch and stays planted while the run is audited: a build audits itself.
`audit/test_mutants.py` says which run meets it and which check must stop it.
"""

from dataclasses import replace

import numpy as np

from airdistill.learning.contrastive import Encoder
from airdistill.learning.fleet import LearningFleet
from airdistill.planning import feature_means
from airdistill.planning.transceiver.correlated import CorrelatedUplink
from airdistill.planning.transceiver.gradient import GradientUplink
from airdistill.planning.updates import Update
from airdistill.planning.uplink import Uplink
from airdistill.privacy import ledger as ledger_module
from airdistill.privacy.correlation import JointRounds
from airdistill.privacy.ledger import Ledger
from airdistill.privacy.pate import ConfidentGnmax
from airdistill.privacy.release import Release
from airdistill.radio import charged_round, discrete_noise, superposition, trusted_aggregator
from airdistill.radio.charged_round import ChargedRound
from airdistill.radio.noise_memory import NoiseMemory
from airdistill.radio.superposition import RoundNoise
from airdistill.radio.trusted_aggregator import ChargedVotes
from airdistill.runs import simulation
from airdistill.schemes import feature_means as scheme_of_features
from airdistill.schemes import updates as scheme_of_updates
from airdistill.schemes.payloads import ClassMeanProtocol, PublicPredictionProtocol


def _wrapped(patch, owner, name, change):
    """Replace a function or method by `change(original, *arguments)`."""
    original = getattr(owner, name)
    patch.setattr(owner, name, lambda *given, **named: change(original, *given, **named))


def _artificial(patch, change):
    """Change the draws that devices add, when they are transmitted."""

    def sent(original, noise, design, *rest):
        return original(replace(noise, artificial=change(noise.artificial)), design, *rest)

    _wrapped(patch, RoundNoise, "transmit", sent)


def seeded_secure_noise(patch):
    """No bug: secure noise from a seed in place of the operating system, so that tests have the same result each time.

    OpenDP's own noise is tested in `radio/test_secure_noise.py`.
    """
    rng = np.random.default_rng(7)

    def drawn(deviation, shape):
        return np.rint(deviation * rng.standard_normal(shape)).astype(np.int64)

    patch.setattr(discrete_noise, "discrete_gaussian", drawn)


def noise_times_0_7(patch):
    _artificial(patch, lambda drawn: 0.7 * drawn)


def receiver_noise_times_0_7(patch):
    _wrapped(patch, superposition, "thermal_noise", lambda original, *given: 0.7 * original(*given))


def secure_noise_times_0_7(patch):
    _wrapped(
        patch, discrete_noise, "discrete_gaussian", lambda original, *given: np.rint(0.7 * original(*given)).astype(int)
    )


def no_noise(patch):
    _artificial(patch, lambda drawn: 0.0 * drawn)


def no_secure_noise(patch):
    _wrapped(patch, discrete_noise, "discrete_gaussian", lambda original, *given: 0 * original(*given))


def charge_halved(patch):
    def charged(original, ledger, release):
        return original(ledger, replace(release, weights=release.weights / np.sqrt(2)))

    _wrapped(patch, Ledger, "charge", charged)


def noise_counted_tenfold(patch):
    def released(original, *given):
        release = original(*given)
        return replace(release, counted_noise_var={name: 10 * c for name, c in release.counted_noise_var.items()})

    _wrapped(patch, Uplink, "release", released)


def sensitivity_of_a_record(patch):
    """A device's gradient is charged as one record's."""
    _wrapped(
        patch, GradientUplink, "sensitivity", lambda original, uplink, _model, index: original(uplink, "paper", index)
    )


def features_counted_half(patch):
    """The bound of feature means is taken as the distance to a vector of zeros: ρ in place of 2ρ."""
    _wrapped(patch, feature_means, "feature_means_sensitivity", lambda original, *given: 0.5 * original(*given))


def clusters_counted_removed(patch):
    """Vectors without negative entries are taken to be ρ apart, as if one device held nothing: ρ in place of √2·ρ."""

    def counted(original, *given):
        return original(*given) / np.sqrt(2)

    _wrapped(patch, feature_means, "feature_means_sensitivity", counted)


def clusters_of_both_signs(patch):
    """Devices send features of any sign, and √2·ρ is charged: opposite vectors are 2ρ apart."""

    def sent(original, payload, *given):
        return -1.0 * original(payload, *given)

    _wrapped(patch, scheme_of_features, "device_vector", sent)


def class_means_not_normalised(patch):
    _wrapped(patch, ClassMeanProtocol, "vectors", lambda original, *given: 10 * original(*given))


def votes_not_limited(patch):
    _wrapped(patch, PublicPredictionProtocol, "vectors", lambda original, *given: 10 * original(*given))


def gradients_not_clipped(patch):
    _wrapped(patch, LearningFleet, "gradients", lambda original, fleet, _clip: original(fleet, None))


def updates_not_clipped(patch):
    def sent(original, payload, updates, clip):
        vectors = original(payload, updates, clip)
        vectors[:, 0, : payload.num_parameters] = updates
        return vectors

    _wrapped(patch, scheme_of_updates, "clipped_vectors", sent)


def indicator_not_charged(patch):
    """The clip indicator travels for nothing: 2C in place of √(4C² + τ²)."""
    patch.setattr(Update, "diameter", property(lambda payload: 2 * payload.clip_norm))


def _device_vector(patch, change):
    """Devices clip and divide by other numbers than the plan's: `change` takes payload, labels and counts."""

    def sent(original, payload, features, labels, counts):
        payload, counts = change(payload, labels, counts)
        return original(payload, features, labels, counts)

    _wrapped(patch, scheme_of_features, "device_vector", sent)


def feature_means_not_clipped(patch):
    _device_vector(patch, lambda payload, _labels, counts: (replace(payload, norm_bound=1e9), counts))


def samples_not_clipped(patch):
    _device_vector(patch, lambda payload, _labels, counts: (replace(payload, sample_bound=1e9), counts))


def live_counts_divide(patch):
    """A device divides by the samples that it holds, not by those that were declared."""
    _device_vector(patch, lambda payload, labels, counts: (payload, np.bincount(labels, minlength=len(counts))))


def encoder_in_training_mode(patch):
    """Batch normalisation keeps using the batch: one record changes the features of the others."""
    _wrapped(patch, Encoder, "train", lambda original, encoder, _mode=True: original(encoder, True))


def no_bound_checked(patch):
    """Nor does the charged round look at what it sends."""
    class_means_not_normalised(patch)
    patch.setattr(charged_round, "check_vectors", lambda *_given: None)


def carry_over_forgets_half(patch):
    whole = Ledger.cost_of_run.fget
    patch.setattr(Ledger, "cost_of_run", property(lambda ledger: whole(ledger) / 2))


def ledger_forgets_half(patch):
    """In what is carried over and in what is spent."""
    carry_over_forgets_half(patch)
    _wrapped(patch, Release, "costs", lambda original, release: {k: cost / 2 for k, cost in original(release).items()})


def scale_from_the_data(patch):
    """After the charge, signals are scaled to the largest vector that there is."""

    def transmitted(original, charged, vectors):
        norms = np.linalg.norm(np.nan_to_num(vectors), axis=2)
        louder = charged.plan.uplink.largest_norm / norms.max() * 1.2
        design = charged.design
        charged.design = replace(
            design, signal_gain=design.signal_gain * louder, rx_scale=design.rx_scale * louder,
            effective_noise_var=design.effective_noise_var / louder**2,
        )  # fmt: skip
        return original(charged, vectors)

    _wrapped(patch, ChargedRound, "transmit", transmitted)


def noise_reused(patch):
    """Every round draws the noise of the first entry."""

    def drawn(original, seed, purpose, _round=0, device=0):
        first = f"{seed.rpartition('-')[0]}-1" if isinstance(seed, str) else seed
        return original(first, purpose, 1, device)

    _wrapped(patch, superposition, "stream", drawn)


def secure_noise_reused(patch):
    """OpenDP is asked once, and its answer is scaled."""
    original, kept = discrete_noise.discrete_gaussian, {}

    def drawn(grid):
        noise, units = (
            np.zeros((*grid.deviation.shape, grid.vector_length), dtype=np.int64),
            grid.deviation / grid.spacing,
        )
        for device, row in np.argwhere(units > 0):
            normal = kept.setdefault((device, row), original(1e6, grid.vector_length) / 1e6)
            noise[device, row] = np.rint(normal * units[device, row])
        return noise

    patch.setattr(discrete_noise, "_drawn", drawn)


def one_device_draws_nothing(patch):
    original = RoundNoise.seeded.__func__

    def seeded(cls, *given, **named):
        noise = original(cls, *given, **named)
        artificial = np.array(noise.artificial)
        artificial[-1] = 0
        return replace(noise, artificial=artificial)

    patch.setattr(RoundNoise, "seeded", classmethod(seeded))


def one_device_adds_nothing(patch):
    """It draws noise and does not send it."""
    _artificial(patch, lambda drawn: np.concatenate([drawn[:-1], np.zeros_like(drawn[-1:])]))


def one_device_adds_no_secure_noise(patch):
    def drawn(original, grid):
        noise = original(grid)
        noise[-1] = 0
        return noise

    _wrapped(patch, discrete_noise, "_drawn", drawn)


def one_device_adds_little_secure_noise(patch):
    """It has noise of its own, as the count of sources demands, and a hundredth of what is counted."""

    def drawn(original, grid):
        noise = original(grid)
        noise[-1] //= 100
        return noise

    _wrapped(patch, discrete_noise, "_drawn", drawn)


def devices_share_secure_noise(patch):
    """Equal devices add the same draws."""

    def drawn(original, grid):
        return np.broadcast_to(original(grid)[:1], (*grid.deviation.shape, grid.vector_length))

    _wrapped(patch, discrete_noise, "_drawn", drawn)


def _aggregator_draws(patch, change):
    """Change the noise of checks `[query]` and of counts `[query, class]` that a trusted aggregator adds."""
    _wrapped(patch, ChargedVotes, "_draws", lambda original, *given: change(*original(*given)))


def vote_noise_times_0_7(patch):
    _aggregator_draws(patch, lambda checks, votes: (checks, 0.7 * votes))


def check_noise_times_0_7(patch):
    _aggregator_draws(patch, lambda checks, votes: (0.7 * checks, votes))


def aggregator_adds_no_secure_noise(patch):
    _wrapped(patch, trusted_aggregator, "discrete_gaussian", lambda original, *given: 0 * original(*given))


def answers_without_limit(patch):
    """Every confident query is answered, and A answers are charged."""

    def answers(original, settings, *given):
        return original(replace(settings, most_answers=settings.num_queries), *given)

    _wrapped(patch, ConfidentGnmax, "answers", answers)


def checks_not_charged(patch):
    """Only answers are: 2A in place of 2A + N(σ2/σ1)²."""
    patch.setattr(ConfidentGnmax, "squared_distance", property(lambda settings: 2.0 * settings.most_answers))


def devices_share_noise(patch):
    original = RoundNoise.seeded.__func__

    def seeded(cls, *given, **named):
        noise = original(cls, *given, **named)
        return replace(noise, artificial=np.broadcast_to(noise.artificial[:1], noise.artificial.shape))

    patch.setattr(RoundNoise, "seeded", classmethod(seeded))


def wrong_axis(patch):
    _artificial(patch, lambda drawn: 1j * drawn)


def seed_fixed(patch):
    """All runs draw what seed 0 draws."""

    def drawn(original, seed, *given):
        key = str(seed).partition("/")[2]
        return original(f"0/{key}" if key else 0, *given)

    _wrapped(patch, superposition, "stream", drawn)


def earlier_noise_not_repeated(patch):
    """Correlated noise whose memory is empty: the noise of every round is new, as strong as it should be."""
    _wrapped(
        patch, NoiseMemory, "correlated", lambda original, memory, index, new: (original(memory, index, new), new)[1]
    )


def earlier_vectors_not_charged(patch):
    """A round with correlated noise charges its own vectors only, and the ledger believes it."""

    def release(original, *given):
        made = original(*given)
        return replace(made, carried_weights=np.zeros_like(made.carried_weights))

    _wrapped(patch, CorrelatedUplink, "release", release)
    patch.setattr(JointRounds, "problem", lambda *_: None)


def earlier_vectors_charged_half(patch):
    """The same by half, and the ledger checks it."""

    def release(original, *given):
        made = original(*given)
        return replace(made, carried_weights=made.carried_weights / 2)

    _wrapped(patch, CorrelatedUplink, "release", release)


def shares_follow_the_round(patch):
    """Devices that send a vector leave more of the fleet's noise to the others."""

    def design(original, uplink, channel, num_rounds, index, spent=None):
        made = original(uplink, channel, num_rounds, index, spent)
        amplitude = np.where(made.weights > 0, 0.9, 1.1)
        return replace(made, noise_gain=made.noise_gain * amplitude)

    _wrapped(patch, CorrelatedUplink, "design", design)


def noise_of_no_ledger(patch):
    """Every run draws the same noise in round t, whatever ledger it charges."""

    def transmitted(original, charged, vectors):
        rng, noise = np.random.default_rng(charged.index), charged.noise
        receiver = np.abs(noise.receiver).mean() * rng.standard_normal(noise.receiver.shape)
        charged.noise = replace(noise, artificial=rng.standard_normal(noise.artificial.shape), receiver=receiver)
        return original(charged, vectors)

    _wrapped(patch, ChargedRound, "transmit", transmitted)


def noise_keyed_by_terms_alone(patch):
    """The key of an entry does not cover the runs that its ledger continues, nor what distinguishes this one."""
    patch.setattr(ledger_module, "noise_origin", lambda *_given: "the same for all runs")


def mask_leaked_by_noise(patch):
    """With secret participation only the devices that send a signal send noise."""

    def masked(original, charged, vectors):
        mask = charged.plan.uplink.participation.signal_mask(charged.index)
        charged.noise = replace(charged.noise, artificial=charged.noise.artificial * mask[:, None, None])
        return original(charged, vectors)

    _wrapped(patch, ChargedRound, "transmit", masked)


def mask_leaked_by_quieter_noise(patch):
    def masked(original, noise, design, vectors, energy_slots):
        zero = ~vectors.any(axis=(1, 2))
        quieter = np.where(zero[:, None, None], 0.5, 1.0) * noise.artificial
        return original(replace(noise, artificial=quieter), design, vectors, energy_slots)

    _wrapped(patch, RoundNoise, "transmit", masked)


def mask_leaked_by_power(patch):
    """The power that is published is that of the round's own mask."""

    def recorded(original, run, this, outcome, epsilon):
        mask = this.plan.uplink.participation.signal_mask(this.index)
        design = outcome.reception.design
        signal = (np.abs(design.signal_gain[mask]) ** 2).sum() + design.noise_power_w().sum()
        reception = replace(outcome.reception, planned_power_w=float(signal / design.signal_gain.shape[1]))
        return original(run, this, replace(outcome, reception=reception), epsilon)

    _wrapped(patch, simulation.Simulation, "_record", recorded)


def epsilon_halved(patch):
    _wrapped(patch, Ledger, "epsilon", lambda original, *given: original(*given) / 2)
