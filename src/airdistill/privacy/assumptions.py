"""What a guarantee says and what it rests on, in words: the same in plans, reports and certificates."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

PUBLIC = "Class counts, weights, gains, scales, the number of rounds, initial weights and batch order are public."
PUBLIC_KNOWLEDGE = "public knowledge"  # the payload of that name
EXACT_CHANNELS = "Channels are known exactly when a round starts."
_NEARLY_KNOWN = (
    "Channels are known up to a relative error of {limit:.3g} when a round starts; an error beyond it would tell more."
)
_SLIPS_ALONG = "Channels may be known only nearly: a device's own noise slips with its signal."
SAMPLING = (
    "The server knows who takes part: every round in which a device does is counted in full, and sampling amplifies "
    "nothing."
)
PARTICIPATION = (
    "Each device takes part in a round with probability {probability:g}, by its own coin, and the server knows who "
    "does, for it aligns them: every round in which a device takes part is counted in full, the others cost it "
    "nothing, and the coin amplifies nothing."
)
HIDDEN_COINS = (
    "Each device sends what it has in a round with probability {probability:g}, by its own coin, and noise in every "
    "round: the server must not learn the coins, neither from a device nor from when and how it sends. Then they "
    "amplify, for whole devices; rounds are composed by privacy loss distributions."
)
RELABEL = "The changed record may change its label, between classes that the device holds anyway."
NOISE = {
    "seeded": "Seeded noise is for simulation: whoever knows the seed can take it off again.",
    "secure": "Noise is discrete Gaussian, drawn by OpenDP from the operating system's randomness, and accounted by "
    "the bound of Kairouz, Liu and Steinke.",
}
TRUST = {
    "receiver_noise": "The receiver's own noise is counted: a server with a quieter receiver sees more than promised.",
    "fleet_noise": "The devices' noise is counted, not the receiver's: every device must add what it was told to, and "
    "over a radio the server must have no more antennas than were planned for, for more can tell devices apart.",
    "own_noise": "Each device counts on its own noise alone; nobody else is trusted.",
}
_ALONE = "In slots of its own a device has nobody's noise but its own: it counts on that alone."
ANTENNAS = (
    "All that the server's {count} antennas hear is counted, not what it combines of it; a server with more of them "
    "sees more than promised."
)
EMULATED = (
    "The medium was emulated: the server process played the channel and saw every device's signal by itself. This is "
    "for test-beds."
)
SECURE_SUM = (
    "The signals were added by secure aggregation: the server saw sums of at least {least} of {all} devices if these "
    "had each other's keys from somebody else than the server, and fewer than {enough} of them lie for it. The noise "
    "of {least} is counted: a device that tells the server its own takes that away from the others."
)
RADIO = (
    "The devices' signals were on the air at the same time in every round: a server that has them sent apart, or a "
    "round in which one that makes noise was missing, hides less than is counted."
)
PILOT = {
    "declared": "The learning constants that chose the number of rounds are taken to be public; a pilot run on private "
    "data is not covered.",
    "synthetic": "The learning constants that chose the number of rounds were measured on synthetic data, made from "
    "the shape of a sample and public class counts alone.",
    "public": "The learning constants that chose the number of rounds were measured on data that was declared public.",
    "private": "The learning constants that chose the number of rounds were measured on the devices' own data, and "
    "nothing hid them: what they and the number of rounds tell of that data is not covered by the guarantee.",
}
_ONE_RECORDS_FEATURES = "Neighbours differ in one record's features."
_BASIS = {
    "paper": "The bound is Lemma 1's √2/B_i, which is none: a class mean is over B_i^k samples, and the model was "
    "trained on the record. No guarantee follows from it.",
    "class_mean": "The model is assumed not to depend on that record. Trained models do.",
    "trajectory": "Assumptions 1–3 with the declared L1 and L2 must hold, and per-sample gradients be clipped at S.",
    "device": "The bound holds for any local training.",
}
STATIC_MODEL = "static model"
JUDGED_BY_CLASS_MEAN = (
    "Lemma 1's √2/B_i is no bound; the verdict is by √2/B_i^k, what one record moves at least if the model was not "
    "trained on it."
)
PUBLIC_SET = (
    "The public samples, and how many of them a device may answer in a round, are known to all and were chosen without "
    "looking at private data."
)
_PUBLIC_SET_BASIS = (
    "A device answers no more public samples than was agreed, each by a vector without negative entries and of norm 1 "
    "at most: the bound holds for any local training and any way to choose what to answer."
)
_GRADIENT_BASIS = (
    "Gradients are clipped per sample, the model is public and treats every sample by itself, so that the bound holds "
    "in every round."
)


@dataclass(frozen=True)
class Assumption:
    """Something taken for granted. What is `declared` is part of the promise itself; the rest can turn out false."""

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


class Promise(Terms, Protocol):
    """What a ledger's header says besides."""

    @property
    def payload(self) -> str: ...

    @property
    def terms(self) -> Mapping[str, Any]: ...


def neighbours(model: str, payload: str) -> str:
    """Which two datasets must look alike."""
    if model == "device":
        return "Neighbours differ in one device's whole dataset."
    if payload == "gradient":
        return "Neighbours differ in one record, its label included."
    return (
        "Neighbours differ in one record." if model == "trajectory" else "Neighbours differ in one record's features."
    )


def basis(model: str, payload: str) -> str:
    """Why they should."""
    if payload == PUBLIC_KNOWLEDGE:
        return _PUBLIC_SET_BASIS
    return _GRADIENT_BASIS if payload == "gradient" and model != "device" else _BASIS[model]


def answers_in_words(terms: Mapping[str, Any]) -> list[str]:
    """How many public samples a device answers; nothing of other payloads."""
    public = terms.get("public")
    if public is None:
        return []
    return [f"A device answers at most {public['answers']} of {public['samples']} public samples in a round."]


def taking_part_in_words(sampling: str, probability: float, hidden: bool) -> list[str]:
    """Who takes part in a round, and whether the server sees it; nothing where everybody does."""
    drawn = [SAMPLING] if sampling != "none" else []
    said = HIDDEN_COINS if hidden else PARTICIPATION
    return [*drawn, said.format(probability=probability)] if probability < 1 else drawn


def channels_in_words(error_limit: float, trust: str) -> str:
    """What is taken for granted of the channel estimates."""
    if error_limit == 0:
        return EXACT_CHANNELS
    return _SLIPS_ALONG if trust == "own_noise" else _NEARLY_KNOWN.format(limit=error_limit)


def trust_in_words(trust: str, uplink: str) -> str:
    return _ALONE if uplink == "orthogonal_knowledge" and trust == "fleet_noise" else TRUST[trust]


def pilot_source(promise: Promise) -> str:
    """Where the learning constants come from; ledgers of old do not say."""
    return str(promise.terms.get("constants", {}).get("source", "declared"))


def assumptions_behind(promise: Promise) -> tuple[Assumption, ...]:
    """All that a promise takes for granted; what can turn out false comes first."""
    found, source = (*_about_sensitivity(promise), *_about_noise(promise)), pilot_source(promise)
    counts = Assumption("public counts and batch order", PUBLIC, declared=True)
    if promise.payload == PUBLIC_KNOWLEDGE:
        found = (*found, Assumption("harmless public set", PUBLIC_SET, declared=True))
    if source == "private":
        # No declaration makes private data public: that its pilot told nothing can turn out false.
        return (*found, Assumption("harmless pilot", PILOT[source]), counts)
    return (*found, counts, Assumption("public pilot", PILOT[source], declared=True))


def _about_sensitivity(promise: Promise) -> Iterator[Assumption]:
    if promise.sensitivity == "device":
        return
    if promise.payload == "gradient":
        yield Assumption("samples apart", _GRADIENT_BASIS)
    elif promise.sensitivity in ("paper", "class_mean"):
        yield Assumption(STATIC_MODEL, _BASIS["class_mean"])
    else:
        constants = promise.terms["constants"]
        size = f"L1 = {constants['grad_lipschitz']:g}, L2 = {constants['model_lipschitz']:g}"
        yield Assumption("Lipschitz constants", f"Assumptions 1–3 hold with {size}.")
        bound = f"S = {constants['grad_norm_bound']:g}"
        yield Assumption("bounded gradients", f"Per-sample gradients stay below {bound}; training does not clip them.")


def _about_noise(promise: Promise) -> Iterator[Assumption]:
    alone = promise.terms["uplink"] == "orthogonal_knowledge"
    if promise.trust == "receiver_noise":
        yield Assumption("receiver noise", TRUST["receiver_noise"])
    elif promise.trust == "fleet_noise" and not alone:
        yield Assumption("honest fleet", TRUST["fleet_noise"])
    medium = promise.terms.get("medium")
    if isinstance(medium, Mapping):
        least, of_all = int(medium["least_devices"]), int(medium["devices"])
        said = SECURE_SUM.format(least=least, all=of_all, enough=2 * least - of_all)
        yield Assumption("secure sum", said)
    elif medium == "radio" and promise.trust == "fleet_noise":
        yield Assumption("sent together", RADIO)
    if not isinstance(medium, Mapping) and (
        promise.trust == "receiver_noise" or not (promise.trust == "own_noise" or alone)
    ):
        # A device's own noise slips with its signal, so that it needs no exact channel.
        limit = float(promise.terms.get("csi_error_limit", 0.0))
        name = "exact channels" if limit == 0 else "bounded channel error"
        yield Assumption(name, channels_in_words(limit, promise.trust))
    if promise.terms.get("participation_hidden", False):
        yield Assumption("hidden coins", HIDDEN_COINS.format(probability=promise.terms["participation"]))
    antennas = int(promise.terms.get("antennas", 1))
    if antennas > 1 and promise.trust != "own_noise":
        # A device's own noise cannot be told from its signal by any number of antennas.
        yield Assumption("number of antennas", ANTENNAS.format(count=antennas))
    if promise.noise == "seeded":
        yield Assumption("secret seed", NOISE["seeded"])
