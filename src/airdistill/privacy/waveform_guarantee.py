"""Which noise a waveform's guarantee may count, for every impairment: proven, charged to δ, or own noise only.

The proofs and factors are in `privacy.waveform` and `privacy.impairments`; this file says which of them applies. The
planner divides the counted noise by the factors, adds the probabilities to δ, and prints the sentences.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from airdistill.privacy.assumptions import ELEMENTS_ONLY

if TYPE_CHECKING:
    from airdistill.scenario.sections import Waveform

Count = Literal["full", "factor", "probability", "own"]


@dataclass(frozen=True)
class Finding:
    """What one impairment does to the noise that is counted.

    `count`: "full", no change; "factor", the counted noise is divided by a proven factor; "probability", it counts in
    full but for a probability that δ is charged with; "own", a device may count on its own noise only. `computed_by`
    names the function that gives the factor or the probability. `assumption` is the finding's short name in a
    certificate if the sentence can turn out false.
    """

    impairment: str
    count: Count
    sentence: str
    computed_by: str = ""
    assumption: str | None = None


_POST_PROCESSING = "is post-processing of a vector that contains the device's own noise, which counts in full."
_AT_SERVER = Finding(
    "converter", "full", "The receiver's converter, filters and decoder process what was received: nothing is lost."
)


def waveform_guarantee(wave: Waveform, trust: str) -> tuple[Finding, ...]:
    """A finding for what the server keeps and for every impairment that the waveform has; the converter is always last.

    `trust` is "receiver_noise", "fleet_noise" or "own_noise". What applies to several impairments at once is the least
    of their counts: "own" before all others.
    """
    if wave.kind == "single_tone":
        return ()
    find = {"receiver_noise": _receiver_noise, "fleet_noise": _fleet_noise, "own_noise": _own_noise}[trust]
    return (*find(wave), _AT_SERVER)


def counts_own_only(findings: tuple[Finding, ...]) -> bool:
    """Whether some impairment leaves nothing proven but a device's own noise: χ_i = 1/s_i."""
    return any(finding.count == "own" for finding in findings)


def impairments(wave: Waveform) -> tuple[str, ...]:
    """The impairments between a device's numbers and the server's samples."""
    present = {
        "amplifier": wave.amplifier != "linear",
        "carrier offset": wave.carrier_offset > 0,
        "phase noise": wave.phase_noise > 0,
        "timing error": wave.timing_error > 0,
        "channel estimates": wave.csi == "pilot",
    }
    return tuple(name for name, there in present.items() if there)


def _own_noise(wave: Waveform) -> list[Finding]:
    """A device's noise goes wherever its signal goes."""
    return [
        Finding(name, "full", f"What the server receives of a device (here: {name}) {_POST_PROCESSING}")
        for name in ("cyclic prefix", *impairments(wave))
    ]


def _observed(wave: Waveform, factor: str, why: str) -> Finding:
    if wave.observed == "elements":
        return Finding("cyclic prefix", "factor", ELEMENTS_ONLY, "waveform.element_factor", "receiver keeps elements")
    return Finding("cyclic prefix", "factor", why, factor)


_RECEIVER: dict[str, tuple[Count, str, str]] = {
    "amplifier": (
        "factor",
        "An amplifier does not enlarge the difference of two signals at the antenna, but it can move it to tones that "
        "the channel passes better: the factor is the channel's dynamic range. A limiter that clips no sample, but "
        "with a probability that δ is charged with, has the factor of the cyclic prefix alone.",
        "impairments.limiter_factor, impairments.clipping_delta",
    ),
    "carrier offset": (
        "factor",
        "An offset turns samples and keeps their energy; late paths turn by less, which changes the sum of paths.",
        "impairments.receiver_deviation_factor",
    ),
    "phase noise": (
        "probability",
        "Phase noise turns samples and keeps their energy; δ is charged with the probability that it turns further "
        "within the channel's memory than counted.",
        "impairments.phase_noise_turns, impairments.receiver_deviation_factor",
    ),
    "timing error": ("full", "A late signal has the same energy, and receiver noise is the same at all times.", ""),
    "channel estimates": (
        "probability",
        "What arrives deviates from what was meant by the estimate's error; δ is charged with the probability of a "
        "larger error than counted.",
        "impairments.receiver_deviation_factor",
    ),
}


def _receiver_noise(wave: Waveform) -> list[Finding]:
    prefix = _observed(
        wave, "waveform.receiver_factor", "A cyclic prefix repeats the symbol's end with new receiver noise."
    )
    return [prefix, *(Finding(name, *_RECEIVER[name]) for name in impairments(wave))]


_FLEET_ELEMENTS: dict[str, tuple[Count, str, str]] = {
    "carrier offset": (
        "factor",
        "Offsets mix tones: what they take from the others' noise and add to a device's signal is bounded.",
        "impairments.rotation_deviation, impairments.deviation_factor",
    ),
    "phase noise": (
        "probability",
        "Phase noise mixes tones by no more than counted; δ is charged with the probability of a larger turn.",
        "impairments.phase_noise_turns, impairments.deviation_factor",
    ),
    "timing error": (
        "full",
        "A late device turns each tone's phase, which circular noise does not feel, if delays fit the cyclic prefix.",
        "",
    ),
    "channel estimates": (
        "probability",
        "Errors of the estimate shrink the others' noise and enlarge a device's signal by no more than counted; δ is "
        "charged with the probability of a larger error.",
        "impairments.deviation_factor",
    ),
}
_LEAKS = (
    "The guarantee counts a device's own noise only: with {name}, its signal reaches samples and unused tones where "
    "the others' noise may not be. Set waveform.observed to elements if the receiver keeps nothing else."
)


def _fleet_noise(wave: Waveform) -> list[Finding]:
    prefix = _observed(
        wave,
        "waveform.prefix_factor",
        "In cyclic prefixes the server receives other combinations of the devices' signals and noise than on elements.",
    )
    return [prefix, *(_fleet_finding(wave, name) for name in impairments(wave))]


def _fleet_finding(wave: Waveform, name: str) -> Finding:
    if name == "amplifier":
        return _fleet_amplifier(wave)
    if wave.observed == "elements":
        return Finding(name, *_FLEET_ELEMENTS[name])
    if name == "channel estimates":
        sentence = "The factor of the cyclic prefix was computed for the channels of the round, as they were known."
        return Finding(name, "factor", sentence, "waveform.prefix_factor", "channels as known")
    return Finding(name, "own", _LEAKS.format(name=name))


def _fleet_amplifier(wave: Waveform) -> Finding:
    if wave.amplifier == "clip":
        sentence = (
            "Noise counts in full if no amplifier clips any sample; δ is charged with (1 + e^ε) times the probability "
            "that one does. At a lower waveform.backoff_db a device counts on its own noise only."
        )
        return Finding("amplifier", "probability", sentence, "impairments.clipping_delta", "random scrambling")
    sentence = (
        "The guarantee counts a device's own noise only: an amplifier that compresses at every level leaves no "
        "Gaussian noise. Use a linear amplifier or a limiter with enough back-off."
    )
    return Finding("amplifier", "own", sentence)
