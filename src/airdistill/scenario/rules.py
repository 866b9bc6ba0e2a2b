"""Rules that involve several fields of a scenario, one function per subject.

Fleet, data, lists of one entry per device, participation, noise, medium, several antennas, and the transceiver as
printed in the paper.
Each function raises `InputError` with the field, its value, the rule, and what to change.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from airdistill.errors import NOT_GIVEN, Described, InputError
from airdistill.scenario.cells import is_threegpp
from airdistill.scenario.networks import check_network

if TYPE_CHECKING:
    from airdistill.scenario.model import Scenario


def check_fleet(scenario: Scenario) -> None:
    """Check the number of devices and of draws."""
    fleet, num_devices = scenario.fleet, scenario.num_devices
    grouped = sum(group.count for group in fleet.groups)
    if num_devices == 0:
        raise InputError("fleet.devices", NOT_GIVEN, "a fleet needs devices, or groups with counts")
    if grouped not in (0, num_devices):
        rule = f"the groups hold {grouped} devices; leave out fleet.devices, or make both agree"
        raise InputError("fleet.devices", fleet.devices, rule)
    if fleet.min_devices > num_devices:
        raise InputError("fleet.min_devices", fleet.min_devices, f"the fleet has only {num_devices} devices")
    if fleet.sampling == "with_replacement" and fleet.sampled_devices is None:
        raise InputError("fleet.sampled_devices", NOT_GIVEN, 'sampling "with_replacement" needs a number of draws')
    _check_cycle(scenario)


def _check_cycle(scenario: Scenario) -> None:
    """Check cyclic participation: every round needs enough devices."""
    fleet, num_devices = scenario.fleet, scenario.num_devices
    if fleet.sampling != "cyclic":
        if fleet.cycle is not None:
            rule = f'needs fleet.sampling = "cyclic", and it is "{fleet.sampling}"'
            raise InputError("fleet.cycle", fleet.cycle, rule)
        return
    if fleet.cycle is None:
        raise InputError("fleet.cycle", NOT_GIVEN, 'sampling "cyclic" needs a number of rounds, at least 2')
    if num_devices // fleet.cycle < fleet.min_devices:
        rule = f"some rounds would have {num_devices // fleet.cycle} of {num_devices} devices, and fleet.min_devices is"
        raise InputError("fleet.cycle", fleet.cycle, f"{rule} {fleet.min_devices}; choose a shorter cycle")
    if scenario.air.medium == "secure_sum":
        rule = 'a secure sum asks every device in every round; set fleet.sampling = "none"'
        raise InputError("fleet.sampling", "cyclic", rule)


def check_partition(scenario: Scenario) -> None:
    """Check how the data is split over devices."""
    data, counts = scenario.data, scenario.data.class_counts
    if data.normalization == "public" and scenario.public is None:
        rule = 'is fitted on public samples, and there are none; add a table [public], or use "fixed"'
        raise InputError("data.normalization", "public", rule)
    if data.resample:
        _check_resampling(scenario)
    if counts is not None:
        if len(counts) != scenario.num_devices:
            shape = Described(f"{len(counts)} rows × {len(counts[0])} columns")
            rule = f"must have one row for each of the {scenario.num_devices} devices"
            raise InputError("data.class_counts", shape, rule)
    elif data.partition == "dirichlet" and data.alpha is None:
        raise InputError("data.alpha", NOT_GIVEN, 'partition "dirichlet" needs a concentration')
    elif data.partition == "shards" and data.classes_per_device is None:
        raise InputError("data.classes_per_device", NOT_GIVEN, 'partition "shards" needs a number of classes')


def _check_resampling(scenario: Scenario) -> None:
    """Check resampling: one sample may be in several devices' vectors, of which a bound for one record counts one."""
    data, sensitivity = scenario.data, scenario.privacy.sensitivity
    if data.class_counts is not None:
        raise InputError("data.resample", True, "declared class counts are not drawn; leave out data.class_counts")
    if data.samples_per_device is None:
        raise InputError("data.samples_per_device", NOT_GIVEN, "data.resample needs a number of samples per device")
    if sensitivity != "device":
        rule = (
            "with data.resample several devices may hold the same record, of which a bound for one record counts one "
            'copy; use "device", or data.resample = false'
        )
        raise InputError("privacy.sensitivity", sensitivity, rule)


def check_learning(scenario: Scenario) -> None:
    """Check models' names, the step size's schedule, and that the optimiser has the bound that privacy counts on."""
    _check_networks(scenario)
    learning, sensitivity = scenario.learning, scenario.privacy.sensitivity
    if learning.schedule == "cosine" and not isinstance(learning.rounds, int):
        rule = f'falls to 0 over learning.rounds, which is "{learning.rounds}"; set learning.rounds to a number'
        raise InputError("learning.schedule", "cosine", rule)
    if learning.optimizer != "sgd" and sensitivity == "trajectory":
        rule = 'privacy.sensitivity = "trajectory" bounds plain gradient steps only; use "sgd", or sensitivity "device"'
        raise InputError("learning.optimizer", learning.optimizer, rule)


def _check_networks(scenario: Scenario) -> None:
    named = {f"fleet.groups.{place}.model": group.model for place, group in enumerate(scenario.fleet.groups)}
    named = named or {"learning.model": scenario.learning.model}
    if scenario.public is not None and scenario.public.server_model is not None:
        named["public.server_model"] = scenario.public.server_model
    for field, name in named.items():
        check_network(name, field)


def check_device_lists(scenario: Scenario) -> None:
    """Check that every list of values per device has as many entries as there are devices."""
    lists: dict[str, int] = {}
    for section, field in [
        ("radio", "peak_power"), ("radio", "distance"), ("privacy", "epsilon"), ("privacy", "delta"),
        ("data", "samples_per_device"),
    ]:  # fmt: skip
        value = getattr(getattr(scenario, section), field)
        if value is not None and value.kind == "list":
            lists[f"{section}.{field}"] = len(value.numbers)
    if scenario.radio.gains is not None:
        lists["radio.gains"] = len(scenario.radio.gains)
    for field, length in lists.items():
        if length != scenario.num_devices:
            rule = f"must have one entry for each of the {scenario.num_devices} devices"
            raise InputError(field, Described(f"{length} entries"), rule)
    if scenario.radio.gains is not None and scenario.radio.trace is not None:
        raise InputError("radio.trace", scenario.radio.trace, "give gains or a trace, not both")


def check_participation(scenario: Scenario) -> None:
    """Check Poisson sampling of devices (`fleet.participation` below 1)."""
    probability = scenario.fleet.participation
    if probability == 1:
        if scenario.fleet.participation_hidden:
            rule = "all devices participate in every round, which is not secret; set fleet.participation below 1"
            raise InputError("fleet.participation_hidden", True, rule)
        return
    if scenario.fleet.participation_hidden:
        _check_secret_participation(scenario)
    if scenario.fleet.sampling != "none":
        rule = f"devices are drawn already by fleet.sampling = {scenario.fleet.sampling}; use one of the two"
        raise InputError("fleet.participation", probability, rule)
    if scenario.air.medium == "secure_sum":
        rule = "a secure sum asks every device in every round; set fleet.participation = 1"
        raise InputError("fleet.participation", probability, rule)


def _check_secret_participation(scenario: Scenario) -> None:
    privacy = scenario.privacy
    if privacy.sensitivity != "device":
        rule = (
            "secret participation amplifies the privacy of whole devices, not that of one record of a participating "
            'device; set privacy.sensitivity = "device"'
        )
        raise InputError("privacy.sensitivity", privacy.sensitivity, rule)
    if privacy.carry_over:
        rule = "with secret participation all rounds have the same privacy budget; set privacy.carry_over = false"
        raise InputError("privacy.carry_over", True, rule)
    if privacy.noise == "secure":
        rule = "secret participation is accounted for Gaussian noise only, not for discrete noise; use seeded noise"
        raise InputError("privacy.noise", privacy.noise, rule)


def check_medium(scenario: Scenario) -> None:
    """Check the medium, which for a secure sum needs enough devices and counts their noise."""
    dropouts, num_devices, medium = scenario.fleet.expected_dropouts, scenario.num_devices, scenario.air.medium
    if medium != "secure_sum":
        if dropouts:
            rule = f"noise for drop-outs is planned only for air.medium = secure_sum, and the medium is {medium}"
            raise InputError("fleet.expected_dropouts", dropouts, rule)
        return
    if 2 * dropouts >= num_devices or num_devices < 2:
        rule = f"a secure sum needs more than half of the {num_devices} devices, and at least 2; expect fewer drop-outs"
        raise InputError("fleet.expected_dropouts", dropouts, rule)
    if scenario.privacy.trust != "fleet_noise":
        rule = "a secure sum is protected by the noise of all devices together; use fleet_noise"
        raise InputError("privacy.trust", scenario.privacy.trust, rule)


def check_waveform(scenario: Scenario) -> None:
    """Reject what an OFDM waveform does not carry, and a waveform as the medium without one."""
    wave, radio, privacy = scenario.waveform, scenario.radio, scenario.privacy
    if wave.kind == "single_tone":
        if scenario.air.medium == "waveform":
            rule = 'samples are simulated for OFDM: set waveform.kind = "ofdm", or air.medium = "emulated"'
            raise InputError("air.medium", "waveform", rule)
        return
    if wave.cyclic_prefix * wave.spacing > 1:
        rule = f"repeats the end of a symbol, and is at most as long: 1/waveform.spacing = {1 / wave.spacing:g} s"
        raise InputError("waveform.cyclic_prefix", wave.cyclic_prefix, rule)
    if wave.csi == "pilot" and wave.pilot == "downlink" and wave.pilot_power == 0:
        rule = 'without a pilot nothing is known of the channels; give it power, or set waveform.csi = "perfect"'
        raise InputError("waveform.pilot_power", 0, rule)
    aligned = (
        "misaligned signals leave the common grid of secure noise; use seeded noise, trust own_noise, or csi perfect"
    )
    own = privacy.trust == "own_noise"
    rejected: list[tuple[bool, str, Any, str]] = [
        (radio.antennas > 1, "radio.antennas", radio.antennas, "is available for one antenna only"),
        (radio.trace is not None, "radio.trace", radio.trace, "has one gain per device and round, not a channel"),
        (radio.noise == "real", "radio.noise", "real", "a receiver's noise in a tone is complex"),
        (radio.transceiver == "paper", "radio.transceiver", "paper", "eqs. (18)-(20) are for one tone"),
        (
            radio.csi_error_db is not None,
            "radio.csi_error_db",
            radio.csi_error_db,
            "the pilots of the waveform decide how well channels are known",
        ),
        (privacy.correlation != "none", "privacy.correlation", privacy.correlation, "needs single tones"),
        (privacy.noise == "secure" and not own, "privacy.noise", "secure", aligned),
        (
            scenario.air.medium in ("secure_sum", "radio"),
            "air.medium",
            scenario.air.medium,
            "carries no OFDM waveform here; use emulated or waveform",
        ),
    ]
    for applies, field, value, rule in rejected:
        if applies:
            raise InputError(field, value, f'{rule}; waveform.kind = "ofdm"')
    _check_observed(scenario)


def _check_observed(scenario: Scenario) -> None:
    """Under a trust model that counts others' noise, reject what no proof covers: see docs/waveform-privacy.md."""
    wave, radio, trust = scenario.waveform, scenario.radio, scenario.privacy.trust
    if trust == "own_noise" or math.isinf(min(scenario.privacy.epsilon.numbers)):
        return
    if wave.observed == "samples" and not _bounds_prefixes(scenario):
        rule = (
            f"with privacy.trust = {trust} no bound is proven on what cyclic prefixes add for a server that keeps "
            "every sample, through several paths known from pilots, or under fleet_noise from moving devices: set "
            'privacy.trust = "own_noise", or declare with waveform.observed = "elements" that it keeps demodulated '
            'elements only; waveform.csi = "perfect" plans for static channels that are known exactly'
        )
        raise InputError("waveform.observed", "samples", rule)
    start = f"with privacy.trust = {trust} no noise is proven to count through it but a device's own"
    # To a receiver without noise the devices add their own, on one axis.
    receiver = trust == "receiver_noise" and radio.noise_power != 0
    if wave.axes == 1 and not receiver:
        raise InputError("waveform.axes", 1, f"{start}; use own_noise")
    known = trust in ("receiver_noise", "fleet_noise")
    clipped = "a fade makes its distortion louder than the signal" if receiver else "clipped noise is not Gaussian"
    leaks = "a turned signal reaches samples and tones where the others' noise is not"
    turns = known and _knows_paths(scenario) and (receiver or wave.observed == "elements")
    why = leaks if _knows_paths(scenario) else "pilots do not tell how strong each of several paths is"
    late = known and (receiver or wave.observed == "elements")
    rejected: list[tuple[bool, str, Any, str]] = [
        (not (receiver and _knows_paths(scenario)), "waveform.amplifier", wave.amplifier, clipped),
        (not turns, "waveform.carrier_offset", wave.carrier_offset, why),
        (not turns, "waveform.phase_noise", wave.phase_noise, why),
        (not late, "waveform.timing_error", wave.timing_error, leaks),
    ]
    for refused, field, value, reason in rejected:
        if refused and value not in ("linear", 0):
            raise InputError(field, value, f"{start}: {reason}; use own_noise")


def _knows_paths(scenario: Scenario) -> bool:
    """Whether the paths of channels are known: exactly, or because a scenario declares one path."""
    one_path = scenario.radio.gains is not None or not is_threegpp(scenario.radio.fading)
    return one_path or scenario.waveform.csi == "perfect"


def _bounds_prefixes(scenario: Scenario) -> bool:
    """Whether the channels that a scenario declares bound what the server learns from cyclic prefixes.

    Of one path that does not change, a prefix repeats what elements show; receiver noise is new in it.
    """
    wave, radio, trust = scenario.waveform, scenario.radio, scenario.privacy.trust
    if trust not in ("receiver_noise", "fleet_noise"):
        return False
    receiver = trust == "receiver_noise" and radio.noise_power != 0
    return wave.csi == "perfect" or (_knows_paths(scenario) and (receiver or wave.speed == 0))


def check_noise(scenario: Scenario) -> None:
    """Check that the counted noise protects what is transmitted, also with channel estimation errors."""
    privacy, radio = scenario.privacy, scenario.radio
    if privacy.noise == "secure" and privacy.trust == "receiver_noise":
        rule = 'with privacy.trust = "receiver_noise" devices add no noise; use fleet_noise or own_noise'
        raise InputError("privacy.noise", privacy.noise, rule)
    if radio.csi_error_db is None:
        return
    if privacy.noise == "secure" and privacy.trust != "own_noise":
        rule = "misaligned signals leave the common grid of secure noise; use privacy.trust = own_noise or seeded noise"
        raise InputError("radio.csi_error_db", radio.csi_error_db, rule)
    if privacy.trust == "receiver_noise" and radio.noise == "real":
        rule = 'a misaligned signal leaves the real axis, on which all of the noise = "real" is; use noise = "complex"'
        raise InputError("radio.csi_error_db", radio.csi_error_db, rule)


def check_antennas(scenario: Scenario) -> None:
    """Reject features that are not available for several antennas."""
    radio, num_antennas = scenario.radio, scenario.radio.antennas
    if num_antennas == 1:
        return
    one_gain, one_antenna = "has one gain per device", "is available for one antenna only"
    fleet, privacy, air = scenario.fleet, scenario.privacy, scenario.air
    rejected: list[tuple[bool, str, Any, str]] = [
        (radio.gains is not None, "radio.gains", "given", one_gain),
        (radio.trace is not None, "radio.trace", radio.trace, one_gain),
        (is_threegpp(radio.fading), "radio.fading", radio.fading, one_antenna),
        (radio.csi_error_db is not None, "radio.csi_error_db", radio.csi_error_db, one_antenna),
        (radio.truncation != 0, "radio.truncation", radio.truncation, one_antenna),
        (radio.transceiver == "paper", "radio.transceiver", "paper", "eqs. (18)-(20) are for one antenna"),
        (radio.noise == "real", "radio.noise", "real", "does not protect the imaginary parts; use complex"),
        (fleet.participation < 1, "fleet.participation", fleet.participation, one_antenna),
        (privacy.noise == "secure", "privacy.noise", "secure", one_antenna),
        (air.medium != "emulated", "air.medium", air.medium, one_antenna),
    ]
    for applies, field, value, rule in rejected:
        if applies:
            raise InputError(field, value, f"{rule}; radio.antennas = {num_antennas}")


def check_correlation(scenario: Scenario) -> None:
    """Reject what correlated noise does not protect, or what would change a device's share of it between rounds."""
    privacy, fleet, radio, learning = scenario.privacy, scenario.fleet, scenario.radio, scenario.learning
    if privacy.correlation == "none":
        return
    changes_shares = "with correlated noise every device adds the same share of it in every round"
    cyclic = fleet.sampling == "cyclic"
    rejected: list[tuple[bool, str, Any, str]] = [
        (
            privacy.trust not in ("fleet_noise", "own_noise"),
            "privacy.trust",
            privacy.trust,
            "the receiver noise is not correlated, and so it is not counted; use fleet_noise or own_noise",
        ),
        (
            cyclic and privacy.trust == "own_noise",
            "privacy.trust",
            privacy.trust,
            "every device would send its whole noise in every round, which costs more than correlation gains; use "
            'fleet_noise, or correlation = "none"',
        ),
        (privacy.noise == "secure", "privacy.noise", "secure", "sums of earlier discrete noise are not on its grid"),
        (privacy.carry_over, "privacy.carry_over", True, changes_shares),
        (radio.truncation != 0, "radio.truncation", radio.truncation, changes_shares),
        (radio.csi_error_db is not None, "radio.csi_error_db", radio.csi_error_db, changes_shares),
        (radio.antennas > 1, "radio.antennas", radio.antennas, "correlated noise is available for one antenna only"),
        (fleet.participation < 1, "fleet.participation", fleet.participation, "use fleet.sampling = none or cyclic"),
        (fleet.sampling not in ("none", "cyclic"), "fleet.sampling", fleet.sampling, "must be none or cyclic"),
        (scenario.air.medium != "emulated", "air.medium", scenario.air.medium, "only a simulation keeps the noise"),
        (
            not isinstance(learning.rounds, int),
            "learning.rounds",
            learning.rounds,
            "the optimum assumes independent noise, and the matrix is made for a number of rounds; set a number",
        ),
    ]
    for applies, field, value, rule in rejected:
        if applies:
            raise InputError(field, value, f"{rule}; privacy.correlation = {privacy.correlation}")


def check_paper_transceiver(scenario: Scenario) -> None:
    """Reject features that eqs. (18)-(20) as printed in the paper do not include."""
    privacy, radio = scenario.privacy, scenario.radio
    if radio.transceiver != "paper":
        return
    needed = {"sensitivity": "paper", "accountant": "paper", "trust": "receiver_noise", "relabel": False}
    for field, value in needed.items():
        if getattr(privacy, field) != value:
            rule = f"the paper's transceiver is defined only for privacy.{field} = {value}"
            raise InputError(f"privacy.{field}", getattr(privacy, field), rule)
    for name, given, wanted in [
        ("radio.truncation", radio.truncation, 0),
        ("radio.csi_error_db", radio.csi_error_db, None),
        ("privacy.carry_over", privacy.carry_over, False),
        ("fleet.participation", scenario.fleet.participation, 1),
    ]:
        if given != wanted:
            rule = "the paper's transceiver does not include this; use radio.transceiver = optimal"
            raise InputError(name, given, rule)
