"""The runs that the golden tests keep: schemes × trust × noise × participation × antennas, and single features.

Every case is a preset with changes, as `airdistill run --set` takes them, so that it outlives any rearrangement of the
modules. The files that a case names are written by `recording.write_inputs`.
"""

from dataclasses import dataclass
from itertools import product

CLASS_MEANS = ("airdistill", "ota_fd", "ota_fd_fixed", "ota_fd_antennas", "orthogonal_fd")
PUBLIC_SET = ("airdistill_proxy", "ota_proxy_fd")
FEATURE_MEANS = ("airdistill_features", "feature_means")
GRADIENTS = ("ota_fl", "ota_fl_fixed", "ota_fl_sampled")
UPDATES = ("ota_fedavg", "ota_head")

TRUST = ("receiver_noise", "fleet_noise", "own_noise")
NOISE = ("seeded", "secure")
PARTICIPATION = {
    "everyone": (),
    "known": ("fleet.participation=0.5",),
    "hidden": ("fleet.participation=0.5", "fleet.participation_hidden=true"),
}
ANTENNAS = (1, 2)

# Three devices that differ in data, privacy target and power; three classes; models of 15 weights; 2 rounds.
FLEET = (
    "fleet.devices=3", "data.dataset={inputs}/blobs.npz", "data.samples_per_device=[20, 14, 17]",
    "privacy.epsilon=[8, 6, 8]", "radio.peak_power=[1e-3, 2e-3, 1e-3]", "learning.model=softmax_regression",
    "learning.rounds=2", "learning.fixed_rounds=2", "learning.max_rounds=6", "learning.initial_lr=0.1",
    "learning.local_epochs=0", "learning.batch_size=6",
)  # fmt: skip
# The planner takes a recorded channel as it is, 8 rounds in place of the 200 that it draws of a fading one.
TRACE = ("radio.trace={inputs}/trace.npz",)
FADING = ()
PUBLIC = ("public.samples=6", "public.distill_epochs=1", "learning.local_epochs=1")
EMBEDDED = ("public.samples=12", *PUBLIC[1:])  # enough to whiten three features

# Secret participation without a privacy target, which this scheme has: these cases were not recorded, because planning
# failed at the time. tests/planning/test_participation.py plans such a fleet.
LEFT_OUT = {f"ota_fd_antennas/{trust}/seeded/hidden/1" for trust in TRUST}


@dataclass(frozen=True)
class Case:
    """A run by its name.

    `after` are the changes of an earlier run of the same devices, whose ledger this one continues. `dtype` is the
    arithmetic of the training: in single precision the last digits depend on the processor far sooner.
    """

    name: str
    scheme: str
    changes: tuple[str, ...]
    after: tuple[str, ...] | None = None
    dtype: str = "float64"
    preset: str = "quick"


def _product():
    schemes = (*CLASS_MEANS, *PUBLIC_SET, *GRADIENTS, *FEATURE_MEANS, *UPDATES)
    for scheme, trust, noise, participation, antennas in product(schemes, TRUST, NOISE, PARTICIPATION, ANTENNAS):
        if scheme in (*FEATURE_MEANS, *UPDATES) and antennas > 1:  # one case of `FEATURES` has several
            continue
        name = f"{scheme}/{trust}/{noise}/{participation}/{antennas}"
        if name in LEFT_OUT:
            continue
        # Several antennas have no recorded channel.
        channel = TRACE if antennas == 1 else (f"radio.antennas={antennas}",)
        how = (f"privacy.trust={trust}", f"privacy.noise={noise}", *PARTICIPATION[participation], *channel)
        yield Case(name, scheme, (*FLEET, *_needed(scheme), *how))


def _needed(scheme):
    if scheme.endswith("_fixed"):
        return ("learning.rounds=1",)  # which they do not follow
    if scheme in (*FEATURE_MEANS, "ota_head"):
        return EMBEDDED
    return PUBLIC if scheme in (*PUBLIC_SET, "proxy_fd", "selective_fd", "feddf", "local_public", "pate") else ()


def _feature(name, scheme, *changes, channel=TRACE, **how):
    return Case(f"{scheme}/{name}", scheme, (*FLEET, *channel, *_needed(scheme), *changes), **how)


_PAPER = ("privacy.sensitivity=paper", "privacy.accountant=paper", "privacy.trust=receiver_noise")
_HIDDEN = PARTICIPATION["hidden"]
_SECURE_SUM = ("air.medium=secure_sum", "fleet.expected_dropouts=1")
_CSI = "radio.csi_error_db=-20"
_CYCLIC = ("fleet.sampling=cyclic", "fleet.cycle=3", "learning.rounds=4")
_ADAPTIVE = ("federated.clip_quantile=0.4", "federated.update_norm=0.2")
_IMAGES = (
    "data.dataset={inputs}/images.npz", "data.samples_per_device=6", "learning.model=paper_cnn",
    "learning.local_epochs=1",
)  # fmt: skip
_TWO_DEVICES = (
    "fleet.devices=2", "data.samples_per_device=[14, 20]", "privacy.epsilon=8", "radio.peak_power=[1e-3, 2e-3]",
)  # fmt: skip
_GROUPS = 'fleet.groups=[{count=2, model="softmax_regression"}, {count=1, model="mlp"}]'

FEATURES = (
    # Training.
    _feature("local_epochs", "ota_fd", "learning.local_epochs=2"),
    _feature("local_epochs", "airdistill", "learning.local_epochs=1"),
    _feature("local_epochs-single", "ota_fd", "learning.local_epochs=1", dtype="float32"),
    _feature("full_batch-single", "airdistill", dtype="float32"),
    _feature("cnn-single", "ota_fd", *_IMAGES, dtype="float32"),
    _feature("models", "ota_fd", _GROUPS),
    _feature("models", "ota_fl", _GROUPS),
    # Rounds and channels.
    _feature("optimal", "ota_fd", "learning.rounds=optimal"),
    _feature("optimal-receiver_noise", "airdistill", "learning.rounds=optimal", "privacy.trust=receiver_noise"),
    _feature("optimal", "ota_fl", "learning.rounds=optimal"),
    _feature("optimal-hidden", "ota_fd", "learning.rounds=optimal", *_HIDDEN),
    _feature("paper_rounds", "ota_fd", "learning.rounds=paper", *_PAPER),
    _feature("rayleigh", "ota_fd", channel=FADING),
    _feature("rayleigh-receiver_noise", "airdistill", "privacy.trust=receiver_noise", channel=FADING),
    _feature("rayleigh", "ota_fl", channel=FADING),
    _feature("rician", "orthogonal_fd", "radio.fading=rician", channel=FADING),
    _feature("real_noise", "ota_fd", "radio.noise=real", "privacy.trust=receiver_noise"),
    _feature("gains", "airdistill", "radio.gains=[[2e-6, 1e-6], [5e-6, -3e-6], [-1e-6, 9e-6]]", channel=FADING),
    _feature("per_class", "ota_fd", *_TWO_DEVICES, "radio.antennas=2", "radio.combining=per_class", channel=FADING),
    _feature("truncation", "ota_fd", "radio.truncation=-125 dB"),
    _feature("truncation-receiver_noise", "ota_fd", "radio.truncation=optimal", "privacy.trust=receiver_noise"),
    _feature("truncation", "ota_proxy_fd", "radio.truncation=-125 dB"),
    *(_feature(f"csi_error-{trust}", "ota_fd", _CSI, f"privacy.trust={trust}") for trust in TRUST),
    _feature("csi_error-secure", "ota_fd", _CSI, "privacy.trust=own_noise", "privacy.noise=secure"),
    _feature("csi_error-fleet_noise-secure", "ota_fd", _CSI, "privacy.noise=secure"),
    _feature("csi_error-known", "airdistill", _CSI, *PARTICIPATION["known"]),
    _feature("csi_error", "ota_proxy_fd", _CSI),
    _feature("csi_error", "ota_fl", _CSI),
    _feature("csi_error", "orthogonal_fd", _CSI),
    _feature("paper_transceiver", "ota_fd", "radio.transceiver=paper", *_PAPER),
    _feature("paper_transceiver", "ota_fl", "radio.transceiver=paper", *_PAPER),
    _feature("secure_sum", "ota_fd", *_SECURE_SUM),
    _feature("secure_sum-secure", "airdistill", *_SECURE_SUM, "privacy.noise=secure"),
    _feature("secure_sum-own_noise", "ota_fd", *_SECURE_SUM, "privacy.trust=own_noise"),
    # Privacy.
    *(_feature(f"{model}", "ota_fd", f"privacy.sensitivity={model}") for model in ("paper", "class_mean")),
    _feature("trajectory", "ota_fd", "privacy.sensitivity=trajectory", "learning.initial_lr=0.001"),
    _feature("paper-paper", "ota_fd", *_PAPER),
    _feature("class_mean", "airdistill", "privacy.sensitivity=class_mean"),
    _feature("class_mean", "orthogonal_fd", "privacy.sensitivity=class_mean"),
    _feature("class_mean-relabel", "ota_fd", "privacy.sensitivity=class_mean", "privacy.relabel=true"),
    _feature("trajectory", "airdistill", "privacy.sensitivity=trajectory", "learning.initial_lr=0.001"),
    _feature("class_mean", "ota_fl", "privacy.sensitivity=class_mean"),
    _feature("class_mean-secure", "ota_fl", "privacy.sensitivity=class_mean", "privacy.noise=secure"),
    _feature("class_mean-hidden", "ota_fd", "privacy.sensitivity=class_mean", *_HIDDEN),
    _feature("paper_accountant", "ota_fd", "privacy.accountant=paper"),
    _feature("paper_accountant", "ota_fl", "privacy.accountant=paper"),
    _feature("paper_accountant-hidden", "ota_fl", "privacy.accountant=paper", *_HIDDEN),
    _feature(
        "paper_accountant-hidden-receiver_noise",
        "ota_fd",
        "privacy.accountant=paper",
        "privacy.trust=receiver_noise",
        *_HIDDEN,
    ),
    _feature("carry_over", "ota_fd", "privacy.carry_over=true", "privacy.trust=receiver_noise"),
    _feature("carry_over-secure", "ota_fd", "privacy.carry_over=true", "privacy.noise=secure"),
    _feature("carry_over", "ota_fl", "privacy.carry_over=true"),
    _feature("class_budget", "ota_fd", "privacy.class_budget=optimal", "privacy.trust=receiver_noise"),
    _feature("min_devices", "ota_fd", "fleet.min_devices=2", *PARTICIPATION["known"]),
    _feature("paper_preset", "ota_fd", preset="paper"),
    _feature("ledger", "ota_fd", after=("learning.rounds=1", "privacy.epsilon=3")),
    _feature("ledger-hidden", "ota_fl", *_HIDDEN, after=("learning.rounds=1", "privacy.epsilon=3")),
    _feature("ledger-secure", "airdistill", "privacy.noise=secure", after=("learning.rounds=1", "privacy.epsilon=3")),
    _feature("ledger-spent", "ota_fd", after=("privacy.epsilon=[9, 9, 9]",)),
    # Data, receivers and the public set.
    _feature("dirichlet", "airdistill", "data.partition=dirichlet", "data.alpha=0.5"),
    _feature("shards", "ota_fd", "data.partition=shards", "data.classes_per_device=2"),
    *(_feature(f"{receiver}", "ota_fd", f"learning.receiver={receiver}") for receiver in ("projected", "tracking")),
    _feature("learning", "ota_fd", "learning.receiver=learning"),
    _feature("tracking", "orthogonal_fd", "learning.receiver=tracking"),
    *(
        _feature(f"{receiver}", "ota_proxy_fd", f"learning.receiver={receiver}")
        for receiver in ("projected", "tracking", "learning")
    ),
    _feature("server_model", "airdistill_proxy", "public.server_model=mlp", "public.samples_per_round=3"),
    _feature("abstain", "ota_proxy_fd", "public.abstain=true", "public.confidence=0.4", "public.answers_per_device=3"),
    _feature(
        "abstain-shards",
        "airdistill_proxy",
        "public.answers_per_device=2",
        "data.partition=shards",
        "data.classes_per_device=2",
        "public.source=train",
    ),
    _feature("client_selector", "ota_proxy_fd", "public.client_selector=density"),
    _feature("server_selector", "ota_proxy_fd", "public.server_selector=1.0"),
    _feature("server_selector", "proxy_fd", "public.server_selector=1.0", "public.abstain=true"),
    _feature("full_batch", "ota_proxy_fd", "learning.local_epochs=0"),
    # Feature means.
    _feature("private_counts", "feature_means", "privacy.counts=private"),
    _feature("private_counts-secure", "airdistill_features", "privacy.counts=private", "privacy.noise=secure"),
    _feature("class_mean", "feature_means", "privacy.sensitivity=class_mean"),
    _feature("model", "airdistill_features", "public.broadcast=model"),
    _feature("random", "feature_means", "public.embedding=random", "public.feature_norm=1", "public.sample_norm=1"),
    _feature("truncation", "feature_means", "radio.truncation=-125 dB"),
    _feature("csi_error", "feature_means", _CSI),
    _feature("antennas", "feature_means", "radio.antennas=2", channel=FADING),
    _feature("secure_sum", "airdistill_features", *_SECURE_SUM),
    _feature("ledger", "airdistill_features", after=("learning.rounds=1", "privacy.epsilon=3")),
    # Federated averaging.
    _feature("adaptive", "ota_fedavg", *_ADAPTIVE, "federated.server_optimizer=momentum"),
    _feature("adam", "ota_head", *_ADAPTIVE, "federated.server_optimizer=adam", "learning.local_epochs=2"),
    _feature("optimal", "ota_fedavg", "learning.rounds=optimal"),
    _feature("carry_over", "ota_fedavg", "privacy.carry_over=true", "federated.server_schedule=cosine"),
    _feature("truncation", "ota_fedavg", "radio.truncation=-125 dB", *_ADAPTIVE),
    _feature("csi_error", "ota_head", _CSI),
    _feature("antennas", "ota_head", "radio.antennas=2", channel=FADING),
    _feature("models", "ota_head", _GROUPS),
    _feature("cnn-single", "ota_fedavg", *_IMAGES, dtype="float32"),
    _feature("adam", "fedopt", "federated.server_optimizer=adam", "learning.local_epochs=2"),
    # Federated learning.
    _feature("with_replacement", "ota_fl", "fleet.sampling=with_replacement", "fleet.sampled_devices=2"),
    _feature(
        "with_replacement-receiver_noise",
        "ota_fl",
        "fleet.sampling=with_replacement",
        "fleet.sampled_devices=2",
        "privacy.trust=receiver_noise",
        "privacy.sensitivity=class_mean",
    ),
    _feature("with_replacement", "ota_fd", "fleet.sampling=with_replacement", "fleet.sampled_devices=2"),
    _feature("clip_norm", "ota_fl", "learning.clip_norm=0.1", "learning.local_epochs=1"),
    # What is not private knows neither trust nor noise.
    *(_feature("everyone", scheme) for scheme in ("fd_error_free", "local_only", "fedsgd", "fedavg")),
    *(_feature("everyone", scheme) for scheme in ("fedopt", "feddf", "centralised", "local_public")),
    # One round of all answers, by a trusted aggregator.
    _feature("everyone", "pate", "learning.rounds=1"),
    _feature("secure", "pate", "learning.rounds=1", "privacy.noise=secure"),
    # Correlated noise.
    _feature("banded", "ota_fl", *_CYCLIC, "privacy.correlation=banded"),
    _feature("blt", "ota_fedavg", *_CYCLIC, "privacy.correlation=blt"),
    *(_feature("local_epochs", scheme, "learning.local_epochs=2") for scheme in ("fd_error_free", "local_only")),
    *(_feature("local_epochs", scheme, "learning.local_epochs=2") for scheme in ("fedavg", "proxy_fd", "selective_fd")),
    _feature("known", "fd_error_free", *PARTICIPATION["known"]),
)

CASES = {case.name: case for case in (*_product(), *FEATURES)}
assert len(CASES) == len(list(_product())) + len(FEATURES), "two cases of one name"

SCHEMES = {case.scheme for case in CASES.values()}
PUBLISHED = {"ota_fd", "ota_fd_fixed", "ota_fd_antennas", "orthogonal_fd", "fd_error_free"}


def cases_of(schemes):
    return [case for case in CASES.values() if case.scheme in schemes]
