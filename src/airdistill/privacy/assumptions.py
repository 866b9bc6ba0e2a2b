"""Assumptions behind a guarantee, in sentences: the same in plans, reports and certificates.

What depends on the payload, on trust or on participation is stated by those objects (`neighbours.py`, `trust.py`,
`participation.py`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from airdistill.units import rounded_up

PUBLIC = "Class counts, weights, gains, scales, the number of rounds, initial weights and batch order are public."
PUBLIC_SIZES = (
    "The number of samples of every device, weights, gains, scales, the number of rounds, initial weights and batch "
    "order are public. Class counts are not: noisy weights are sent in their place, charged with the features."
)
_DISCLOSED_COUNTS = (
    "Class counts are public by declaration: how many samples of each class a device holds is disclosed, not protected."
)


def public_facts(terms: Mapping[str, Any], counts_disclosed: bool = False) -> str:
    """What is public by declaration, from a ledger's terms; another run of the ledger may have disclosed counts."""
    facts = PUBLIC if counts_disclosed or not counts_are_private(terms) else PUBLIC_SIZES
    # Of a run that starts with an earlier one's models, `STARTED_FROM` says what they are.
    return facts.replace(", initial weights and batch order", " and batch order") if "after" in terms else facts


def counts_are_private(terms: Mapping[str, Any]) -> bool:
    """Whether a payload sends noisy weights in place of class counts."""
    return float(terms.get("features", {}).get("count_norm", 0.0)) > 0


RESAMPLED = (
    "Devices drew their samples from one training set, and several may hold the same one: the guarantee covers "
    "everything that one device holds, and no sample that others hold too. Figures for one record count its copy on "
    "one device."
)


def resampling_statement(terms: Mapping[str, Any]) -> list[str]:
    """What a guarantee covers if devices may hold the same samples; nothing if they cannot."""
    return [RESAMPLED] if terms.get("resampled") else []


def counts_statement(terms: Mapping[str, Any]) -> list[str]:
    """That class counts are disclosed, of feature means that are divided by them."""
    return [_DISCLOSED_COUNTS] if "features" in terms and not counts_are_private(terms) else []


COUNTS_NO_LONGER_PRIVATE = (
    "Class counts are not protected: feature means of this ledger kept them private, and another run of it has "
    "disclosed them."
)
EXACT_CHANNELS = "Channels are known exactly when a round starts."
_NEARLY_KNOWN = (
    "Channels are known up to a relative error of {limit} when a round starts; a larger error would reveal more. "
)
_EXCESS_UNKNOWN = "The ledger does not record how probable larger errors are."
_EXCESS = (
    "Such an error of any device in any round has a probability of at most {excess}, which is part of the stated δ; "
    "errors are complex Gaussian and independent of the noise. A simulation truncates them there."
)
_QUANTILE = " The limit is the {quantile!r} quantile of the error of one device in one round."
# What certificates say since later than their version: one that was signed before it still follows from its ledger.
_ADDED = re.compile(r" The limit is the [0-9.e-]+ quantile of the error of one device in one round\.$")
_OWN_PHASE = "Channel estimates need not be exact: a device's own noise has the same misalignment as its signal."
_PILOT_ERRORS = (
    "Given their pilots, channels are complex Gaussian and change no faster than Jakes' model at the stated speed. "
    "Signals then arrive at most {limit} times as strong as designed, and the fleet's noise at least {kept} times, but "
    "for a probability of {excess} over the whole run, which is part of the stated δ."
)
ELEMENTS_ONLY = (
    "The server's receiver keeps demodulated resource elements only. One that keeps every sample sees, in the cyclic "
    "prefixes, other combinations of the devices' signals and noise, and more than is counted."
)
_ALL_SAMPLES = (
    "All that the server's antenna receives is counted, cyclic prefixes included: noise counts 1/{factor} of its "
    "variance. Channels have the computed paths, at whole samples, and do not change during a {still}; other paths or "
    "changes would reveal more."
)
_LIMITS = {
    "carrier_offset": "Carriers are off by at most {:g} Hz",
    "phase_noise": "oscillators have Wiener phase noise of a linewidth of at most {:g} Hz",
    "timing_error": "devices are at most {:.3g} s late",
}
_AMPLIFIERS = {"clip": "amplifiers are ideal limiters", "rapp": "amplifiers follow Rapp's model"}
NOISE = {
    "seeded": "Seeded noise is a simulation: it protects no device, because anyone who knows the seed can remove it.",
    "secure": "Noise is discrete Gaussian, drawn by OpenDP from the operating system's randomness, and accounted by "
    "the bound of Kairouz, Liu and Steinke.",
}
_KEYED = (
    "It is keyed by scheme, scenario, data, earlier runs and the ledger's entry: no two entries of a ledger share "
    "noise."
)
_KEYED_BY_SESSION = (
    "It is keyed by scheme, scenario, a random id that the federation's folders were prepared with, and the ledger's "
    "entry: no two entries of a ledger share noise. Copies of these folders that are run on other data do."
)
_KEYED_BY_SCENARIO = (
    "It is keyed by scheme, scenario and the ledger's entry: no two entries of a ledger share noise. Data are not part "
    "of the key, because no endpoint has all: another federation of this scenario has the same noise."
)
_UNKEYED = (
    "An earlier version began this run: its noise depends on seed, round and device alone, and another run with the "
    "same seed may have had the same noise."
)
ANTENNAS = (
    "Everything that the server's {count} antennas receive is counted, not only what the server combines; a server "
    "with more antennas sees more than is guaranteed."
)
EMULATED = (
    "The medium was emulated: the server process played the channel and saw every device's signal separately. This is "
    "for test-beds."
)
UPDATE_REPORTS = (
    "Every device reported the exact losses and the accuracy of its model to the server; the ledger does not count "
    "them."
)
OTHER_RUNS = (
    "The releases of this run and of {others} are counted. Any other run on the same devices' data adds to what they "
    "have spent, and so does a copy of this run's folder that was made before another run continued it, if the copy is "
    "continued too: no ledger can show either."
)
MOVED_DATA = (
    "The earlier runs ({names}) had other data on the devices, or their ledger does not record which: no record has "
    "moved from one device to another since. What a device spends is added up, whatever data it held."
)
MOVED_PUBLIC = " None of their private records was or is in a public set of another of these runs."
_WITHHELD = (
    "A data-dependent ε would be smaller if devices agree. It is a function of private votes and was not sanitised: it "
    "is no guarantee, and is not stated here."
)
_PUBLISHED = (
    "With the votes that were cast, the data-dependent analysis gives ε = {epsilon} at the smallest δ. It is computed "
    "from private votes and was not sanitised: it is no guarantee, and stating it reveals something about the votes, "
    "which the scenario declares to be acceptable."
)
SECURE_SUM = (
    "The signals were added by secure aggregation: the server saw sums of at least {least} of {all} devices if these "
    "have each other's keys from a party other than the server, and if fewer than {enough} of them collude with it. "
    "The noise of {least} devices is counted: a device that reveals its noise to the server removes it for the others."
)
COMPARED = (
    "{public} public samples were compared with {private} private and {test} test samples: no exact copies. Near "
    "copies are not detected."
)
NOT_COMPARED = "The public samples were not compared with private or test samples: they may be copies of these."
COMPARED_BY_DEVICES = (
    "Each device compared the public samples with its own training samples before it sent anything: no exact copies. "
    "Near copies are not detected."
)
SKIPPED = (
    "Samples that were not held out as public, because the dataset has other copies of them: {skipped}. Which ones is "
    "not protected."
)
PRIVATE_IN_TEST = "Test samples that are copies of private samples in the dataset itself: {private_in_test}."
RADIO = (
    "The devices' signals were on the air at the same time in every round: a server that has them sent separately, or "
    "a round in which a device that adds noise was missing, hides less than is counted."
)
OWN_MODEL = " Its models share no weights or statistics between devices."
OWN_EMBEDDING = " Its embedding gives a sample features of that sample alone, and no private sample has influenced it."
OWN_SCHEME = (
    " Its scheme computes what a device sends from that device's vectors alone, and a bound on one record assumes that "
    "it sends them unchanged."
)
STARTED_FROM = (
    "In {run} the initial weights are those with which an earlier run in the ledger left the devices. They are not "
    "public: charged releases and each device's own data made them, and the bound holds for any training before it."
)
OWN_CODE = (
    "The user's own code in this run ({parts}) is trusted to send and to learn from nothing but what it charges, and "
    "to state bounds and counted noise truthfully."
)
PILOT = {
    "declared": "The learning constants that chose the number of rounds are taken to be public; a pilot run on private "
    "data is not covered.",
    "synthetic": "The learning constants that chose the number of rounds were measured on synthetic data, made from "
    "the shape of a sample and public class counts only.",
    "public": "The learning constants that chose the number of rounds were measured on data that was declared public.",
    "private": "The learning constants that chose the number of rounds were measured on the devices' own data without "
    "any noise: what they and the number of rounds reveal of that data is not covered by the guarantee.",
}


@dataclass(frozen=True)
class Assumption:
    """Something taken for granted. A `declared` one is part of the guarantee itself; others can turn out false."""

    name: str
    sentence: str
    declared: bool = False


class Terms(Protocol):
    """How a run counts privacy: the fields of a scenario's privacy section, or of a ledger's header."""

    @property
    def sensitivity(self) -> str: ...

    @property
    def trust(self) -> str: ...

    @property
    def relabel(self) -> bool: ...

    @property
    def noise(self) -> str: ...


def noise_statement(noise: str, terms: Mapping[str, Any]) -> list[str]:
    """How the noise was drawn, and that no other release has the same."""
    return [NOISE[noise], *([_key_of(terms)] if noise == "seeded" else [])]


def _key_of(terms: Mapping[str, Any]) -> str:
    """By what a run's seeded noise differs from that of others."""
    if "noise_key" not in terms:
        return _UNKEYED
    if "medium" not in terms:
        return _KEYED
    return _KEYED_BY_SESSION if "session" in terms else _KEYED_BY_SCENARIO


def answers_statement(terms: Mapping[str, Any]) -> list[str]:
    """How many public samples a device answers; nothing for other payloads."""
    public = terms.get("public")
    if public is None:
        return []
    return [f"A device answers at most {public['answers']} of {public['samples']} public samples in a round."]


def votes_statement(terms: Mapping[str, Any], data_dependent: float | None = None) -> list[str]:
    """What is said of the data-dependent ε of votes that a trusted aggregator answered; nothing for other payloads."""
    if "pate" not in terms:
        return []
    if data_dependent is None:
        return [_WITHHELD]
    return [_PUBLISHED.format(epsilon=rounded_up(data_dependent))]


def comparison_statement(terms: Mapping[str, Any]) -> list[str]:
    """What public samples were compared with; nothing for runs without a public set."""
    compared = terms.get("public_comparison")
    if compared is None:
        if "public_set" in terms:  # of a federation, whose server has no private samples
            return [COMPARED_BY_DEVICES]
        return [NOT_COMPARED] if "public" in terms else []  # a ledger of an older version
    return [COMPARED.format(**compared), *copies_in_dataset(compared)]


def copies_in_dataset(compared: Mapping[str, int]) -> list[str]:
    """What a comparison found of a dataset's own copies; nothing if it has none."""
    named = {"skipped": SKIPPED, "private_in_test": PRIVATE_IN_TEST}
    return [sentence.format(**compared) for name, sentence in named.items() if compared[name]]


def channels_statement(
    error_limit: float, own_noise_only: bool, excess: float | None, quantile: float | None = None
) -> str:
    """What is taken for granted of the channel estimates.

    `excess` is the probability of any error beyond the limit, the error's `quantile`; None if it is not known.
    A plan leaves the quantile out, because its scenario states it.
    """
    if error_limit == 0:
        return EXACT_CHANNELS
    if own_noise_only:
        return _OWN_PHASE
    beyond = _EXCESS_UNKNOWN if excess is None else _EXCESS.format(excess=rounded_up(excess))
    which = "" if quantile is None else _QUANTILE.format(quantile=quantile)
    return _NEARLY_KNOWN.format(limit=rounded_up(error_limit)) + beyond + which


def in_earlier_words(sentence: str) -> str:
    """A sentence as certificates of versions before 0.2 have it."""
    return _ADDED.sub("", sentence)


def waveform_assumptions(waveform: Mapping[str, Any], own_noise_only: bool) -> list[Assumption]:
    """What is taken for granted of an OFDM waveform, as a ledger's header or a plan describes it."""
    if own_noise_only:
        return [Assumption("own noise", _OWN_PHASE, declared=True)]
    if waveform["observed"] == "elements":
        found = [Assumption("receiver keeps elements", ELEMENTS_ONLY)]
    else:
        still, factor = "round" if waveform["csi"] == "perfect" else "symbol", rounded_up(float(waveform["factor"]))
        found = [Assumption("paths of the channels", _ALL_SAMPLES.format(factor=factor, still=still))]
    if "impairments" in waveform:
        found.append(Assumption("impairments within limits", _impaired(waveform)))
    if waveform["csi"] == "perfect":
        return [Assumption("exact channels", EXACT_CHANNELS), *found]
    numbers = {name: rounded_up(float(waveform[name])) for name in ("limit", "excess")}
    sentence = _PILOT_ERRORS.format(kept=f"{float(waveform['kept']):.3g}", **numbers)
    return [Assumption("bounded channel error", sentence), *found]


def _impaired(waveform: Mapping[str, Any]) -> str:
    """The limits of the devices' radios that noise was counted for."""
    stated = dict(waveform["impairments"])
    amplifier = stated.pop("amplifier", None)
    parts = [_LIMITS[field].format(float(value)) for field, value in stated.items()]
    parts += [] if amplifier is None else [_AMPLIFIERS[amplifier]]
    chance = ""
    if "phase_noise" in stated:
        chance = f", but for a probability of {rounded_up(float(waveform['excess']))}, which is part of the stated δ"
    return f"{', '.join(parts)}: noise counts 1/{rounded_up(float(waveform['factor']))} of its variance for it{chance}."


def pilot_source(terms: Mapping[str, Any]) -> str:
    """Where the learning constants come from; old ledgers do not record it."""
    return str(terms.get("constants", {}).get("source", "declared"))
