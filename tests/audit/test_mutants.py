"""The mutation test: planted bugs, and the check that stops each; and runs without bugs, in which nothing is found."""

from pathlib import Path

import mutants
import pytest
from small_worlds import small_scenario, write_dataset

from airdistill.audit import AuditOptions, audit_run
from airdistill.errors import AirDistillError
from airdistill.runs.options import RunOptions
from airdistill.runs.runner import run

RECORDED = AuditOptions(parts=("recorded",))
# What a run's own data does not show, an attack with embedded data does.
ATTACKED = AuditOptions(parts=("exact", "empirical"), transcripts=1, candidates=1, trials=200)
EVERY_ROUND = RunOptions(threads=1, eval_every=1)


@pytest.fixture(autouse=True)
def same_noise_each_time(monkeypatch):
    mutants.seeded_secure_noise(monkeypatch)


MANUAL = Path(__file__).parents[2] / "docs/planted-bugs.md"

FLEET = "privacy.trust=fleet_noise"
SECURE = "privacy.noise=secure"
PUBLIC = ("public.samples=30", "public.distill_epochs=1", "learning.local_epochs=1", "learning.rounds=8")
FEATURES = ("public.samples=30", "public.features=4", "public.distill_epochs=1", "learning.rounds=2")
CLUSTERS = ("public.samples=40", "public.embedding=clusters", "public.distill_epochs=1", "learning.rounds=2")
# Images of 8 × 8 pixels, on which an encoder is trained for 100 passes of one batch.
ENCODED = (*FEATURES, "public.embedding=contrastive", "data.dataset={folder}/images.npz")
SECRET = ("fleet.participation=0.5", "fleet.participation_hidden=true", "fleet.devices=6", "learning.max_rounds=6")
CORRELATED = ("privacy.correlation=blt", "fleet.sampling=cyclic", "fleet.cycle=3")
CARRIED = ("privacy.carry_over=true",)
ALONE = ("fleet.devices=1", "radio.noise_power=1e-20 W")
# Equal devices: without one of eight 7/8 of the noise is left, which tests of variances see.
EIGHT = (
    *PUBLIC, "fleet.devices=8", "data.samples_per_device=15", "radio.gains=[[1e-4, 0]" + ", [1e-4, 0]" * 7 + "]",
    "learning.rounds=40",
)  # fmt: skip
# Without one of thirty it is 29/30, which they do not see.
THIRTY = ("fleet.devices=30", "data.samples_per_device=15", "radio.gains=[[1e-4, 0]" + ", [1e-4, 0]" * 29 + "]")

# Twelve devices that vote on 24 samples.
VOTES = (
    "fleet.devices=12", "public.samples=24", "public.distill_epochs=1", "learning.local_epochs=1", "privacy.epsilon=50",
)  # fmt: skip
# All agree, and a third of the confident queries may be answered.
AGREEING = (*VOTES[:-1], "public.vote_threshold=0.1", "public.answered=4", "public.samples_per_round=24")

# Messages
REDRAWN = "The recorded noise is not what this seed and ledger draw"
WEAK = "Noise lower than predicted"
UNDERCHARGED = "The ledger charges less than was released"
NOT_PLANNED = "The records are not those of the plan"
TOO_LONG = "would send a vector of norm"
RECORD_MOVES = "The certified bound of one record, theory section 10 is not a valid bound"

# Mutant, scheme, changes of the small scenario, the check that stops it, and a word of the message.
MUTANTS = [
    ("noise_times_0_7", "ota_fd", (), "audit", REDRAWN),
    (
        "receiver_noise_times_0_7",
        "ota_fd",
        ("privacy.trust=receiver_noise",),
        "audit",
        REDRAWN,
    ),
    ("secure_noise_times_0_7", "ota_proxy_fd", (*PUBLIC, SECURE), "audit", WEAK),
    ("no_noise", "ota_fd", (), "audit", WEAK),
    (
        "no_noise",
        "ota_fl",
        ("privacy.trust=own_noise",),
        "audit",
        REDRAWN,
    ),
    ("no_secure_noise", "ota_fd", (SECURE,), "run", "has no noise"),
    ("charge_halved", "ota_fd", (), "audit", UNDERCHARGED),
    ("charge_halved", "orthogonal_fd", (SECURE,), "audit", UNDERCHARGED),
    ("noise_counted_tenfold", "airdistill", (), "audit", UNDERCHARGED),
    ("sensitivity_of_a_record", "ota_fl", (), "audit", UNDERCHARGED),
    ("features_counted_half", "feature_means", FEATURES, "audit", UNDERCHARGED),
    ("clusters_counted_removed", "feature_means", CLUSTERS, "audit", UNDERCHARGED),
    ("clusters_of_both_signs", "airdistill_features", CLUSTERS, "run", "would send a negative entry"),
    ("encoder_in_training_mode", "feature_means", ENCODED, "run", "changes its own stem.norm.running_mean"),
    ("class_means_not_normalised", "ota_fd", (), "run", TOO_LONG),
    ("votes_not_limited", "ota_proxy_fd", PUBLIC, "run", TOO_LONG),
    ("gradients_not_clipped", "ota_fl", ("learning.clip_norm=0.01",), "run", TOO_LONG),
    ("updates_not_clipped", "ota_fedavg", ("federated.update_norm=0.01",), "run", TOO_LONG),
    ("indicator_not_charged", "ota_fedavg", ("federated.clip_quantile=0.5",), "audit", UNDERCHARGED),
    ("noise_times_0_7", "feature_means", FEATURES, "audit", REDRAWN),
    ("secure_noise_times_0_7", "feature_means", (*FEATURES, SECURE), "attack", "Noise lower than counted"),
    ("charge_halved", "airdistill_features", FEATURES, "audit", UNDERCHARGED),
    ("feature_means_not_clipped", "feature_means", (*FEATURES, "public.feature_norm=0.5"), "run", TOO_LONG),
    ("samples_not_clipped", "feature_means", FEATURES, "attack", RECORD_MOVES),
    ("live_counts_divide", "airdistill_features", FEATURES, "attack", RECORD_MOVES),
    ("no_bound_checked", "ota_fd", (), "audit", "More power was transmitted"),
    ("carry_over_forgets_half", "ota_fd", CARRIED, "audit", NOT_PLANNED),
    ("ledger_forgets_half", "ota_fd", CARRIED, "audit", "The ledger states ε"),
    ("scale_from_the_data", "ota_fd", (), "audit", NOT_PLANNED),
    ("noise_reused", "ota_fd", (), "audit", "Noise is reused"),
    ("noise_reused", "ota_fl", (), "audit", REDRAWN),
    (
        "secure_noise_reused",
        "ota_fd",
        (SECURE, "fleet.devices=1", "radio.noise_power=1e-20 W"),
        "audit",
        "Noise is reused",
    ),
    ("one_device_draws_nothing", "ota_fd", (), "run", "device 2 has no noise"),
    ("one_device_adds_nothing", "ota_fd", (), "audit", REDRAWN),
    ("one_device_adds_no_secure_noise", "ota_fd", (*THIRTY, SECURE), "run", "device 29 has no noise"),
    ("one_device_adds_little_secure_noise", "ota_proxy_fd", (*EIGHT, SECURE), "audit", WEAK),
    ("devices_share_secure_noise", "ota_fd", (*THIRTY, SECURE), "run", "two devices share noise"),
    ("devices_share_noise", "ota_fd", (), "run", "two devices share noise"),
    ("wrong_axis", "ota_fd", (), "audit", WEAK),
    ("seed_fixed", "ota_fd", ("seed=5",), "audit", REDRAWN),
    ("noise_keyed_by_terms_alone", "ota_fl", (), "audit", REDRAWN),
    ("mask_leaked_by_noise", "ota_fd", SECRET, "run", "has no noise"),
    (
        "mask_leaked_by_quieter_noise",
        "ota_fd",
        SECRET,
        "audit",
        REDRAWN,
    ),
    ("mask_leaked_by_power", "ota_fd", SECRET, "audit", "The recorded power is not that of the plan"),
    ("earlier_noise_not_repeated", "ota_fl", CORRELATED, "audit", REDRAWN),
    ("earlier_vectors_not_charged", "ota_fl", CORRELATED, "audit", UNDERCHARGED),
    ("earlier_vectors_charged_half", "ota_fl", CORRELATED, "run", "carried_weights: must be"),
    ("shares_follow_the_round", "ota_fl", CORRELATED, "run", "it must be the same in every round"),
    ("epsilon_halved", "ota_fd", (), "audit", "The summary states ε"),
    ("charge_halved", "pate", VOTES, "audit", UNDERCHARGED),
    ("checks_not_charged", "pate", VOTES, "audit", UNDERCHARGED),
    ("vote_noise_times_0_7", "pate", VOTES, "audit", REDRAWN),
    ("check_noise_times_0_7", "pate", VOTES, "audit", REDRAWN),
    ("noise_keyed_by_terms_alone", "pate", VOTES, "audit", REDRAWN),
    ("answers_without_limit", "pate", AGREEING, "audit", NOT_PLANNED),
    ("aggregator_adds_no_secure_noise", "pate", (*VOTES, SECURE), "run", "the aggregator has no noise"),
]


@pytest.mark.parametrize(
    ("mutant", "scheme", "changes", "caught_by", "words"),
    MUTANTS,
    ids=[f"{mutant}-{scheme}" for mutant, scheme, *_ in MUTANTS],
)
def test_a_planted_bug_is_stopped(tmp_path, monkeypatch, mutant, scheme, changes, caught_by, words):
    write_dataset(tmp_path / "blobs.npz", num_train=450, num_test=60)
    write_dataset(tmp_path / "images.npz", features=(8, 8), num_train=120, num_test=60)
    scenario = small_scenario(tmp_path, *(change.replace("{folder}", str(tmp_path)) for change in changes))
    getattr(mutants, mutant)(monkeypatch)
    stopped_by, messages = _stopped(scenario, scheme, tmp_path / "run")
    assert stopped_by == caught_by
    assert any(words in message for message in messages), messages
    # The manual's table says which check catches which bug.
    assert f"| `{mutant}` | `{scheme}` | {stopped_by} | {words} |" in MANUAL.read_text().splitlines()


def _stopped(scenario, scheme, folder):
    try:
        run(scenario, scheme, out=folder, options=EVERY_ROUND)
    except AirDistillError as error:
        return "run", [str(error)]
    for stopped_by, options in (("audit", RECORDED), ("attack", ATTACKED)):
        found = audit_run(folder, options)
        if found.violations:
            return stopped_by, list(found.violations)
    return "no check", []
