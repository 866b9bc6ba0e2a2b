"""Neighbours: what two neighbouring datasets can do to a payload, and how a certificate states it.

A payload is accounted as data: how far apart the vectors of two neighbours can be, in which geometry, and why. The
ledger keeps the payload's name; of a user's own payload its header keeps the statements too, because a reader of the
ledger may not have the class.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from airdistill.errors import Described, InputError
from airdistill.privacy.assumptions import Assumption
from airdistill.privacy.poisson_sampling import OPPOSITE, ORTHOGONAL

STATIC_MODEL = "static model"
RELABEL = "The changed record may change its label, between classes that the device holds anyway."
JUDGED_BY_CLASS_MEAN = (
    "Lemma 1's √2/B_i is not a valid bound; the verdict uses √2/B_i^k, the least that one record moves if the model "
    "was not trained on it."
)
_WHOLE_DEVICE = "Neighbours differ in one device's whole dataset."
_ONE_RECORD = "Neighbours differ in one record."
_ONE_RECORD_FEATURES = "Neighbours differ in one record's features."
_UNTRAINED = "The model is assumed not to depend on that record."
_STATIC = (
    "The bound assumes a model that was not trained on that record. Devices train on it from round 1 on, and so the "
    "bound does not apply from round 2 on."
)
JUDGED_BY_DEVICE = (
    "The declared bound assumes a model that was not trained on the record, and the models of this run were. The "
    "verdict uses the bound for whole devices, √2, which holds for any local training."
)
_ANY_TRAINING = "The bound holds for any local training."
_PUBLIC_BASIS = (
    "A device answers at most the agreed number of public samples, each by a vector without negative entries and of "
    "norm at most 1: the bound holds for any local training and any way to choose what to answer."
)
_VOTES_BASIS = (
    "A device casts at most one vote on a public sample: the largest count moves by at most 1, all counts by at most "
    "√2, and every check and every answer is counted, whatever the votes are. The bound holds for any local training."
)
_GRADIENT_BASIS = (
    "Gradients are clipped per sample, and the model is public and processes every sample separately: the bound holds "
    "in every round."
)

_FEATURES_BASIS = (
    "A device sends sums of features of its samples under an embedding that no private sample has influenced. Every "
    "sample's features are clipped, and so is the whole vector: the bound is exact, in every round."
)
_CLUSTERS_BASIS = (
    "A device sends, for each class, the shares of its samples in clusters of the public samples that no private "
    "sample has influenced. No entry is negative, every sample's part is clipped, and so is the whole vector: two "
    "vectors of norm ρ are at most √2·ρ apart, and the bound is exact, in every round."
)
_LATER_FEATURES_BASIS = (
    "A device sends sums of features of its samples: in the first round under an embedding that no private sample has "
    "influenced, and from then on under one that depends on private samples through charged releases alone. Every "
    "sample's features are clipped, and so is the whole vector: given all earlier releases the bound is exact in every "
    "round, and the rounds compose adaptively."
)

_UPDATES_BASIS = (
    "A device's update of the model is clipped to a norm, and the indicator that says whether the clip acted, if it is "
    "sent, has two values: the bound holds for any local training."
)
_PUBLIC_HEAD = (
    "The embedding, the number of its features and the first clip were fixed from public data and from declared "
    "numbers alone, before any private sample was looked at."
)


@dataclass(frozen=True)
class Neighbours:
    """The neighbouring relation of a payload by sensitivity model, and the basis of its bound.

    `geometry` is the worst pair of two neighbours' vectors: opposite, or orthogonal if no entry is negative; the
    charged round checks that. `record_assumption` is what a guarantee for one record takes for granted, `declared` what
    every guarantee declares. `is_class_mean` marks the paper's payload: Lemma 1, relabelling and trajectories apply to
    it. `record_is_exact` says that the bound for one record holds for any number of rounds, because nothing private was
    trained on it.
    """

    payload: str
    geometry: str = OPPOSITE
    relation: Mapping[str, str] = field(default_factory=dict)
    basis: Mapping[str, str] = field(default_factory=dict)
    record_assumption: Assumption | None = None
    declared: Assumption | None = None
    is_class_mean: bool = False
    record_is_exact: bool = False

    def __post_init__(self) -> None:
        if self.geometry not in (OPPOSITE, ORTHOGONAL):
            raise InputError("Neighbours.geometry", self.geometry, f"must be {ORTHOGONAL} or {OPPOSITE}")
        for name in ("relation", "basis"):
            stated = getattr(self, name)
            sentences = stated.values() if isinstance(stated, Mapping) else (None,)
            if not all(isinstance(sentence, str) for sentence in sentences):
                rule = 'must be sentences by sensitivity model, such as {"device": "…"}'
                raise InputError(f"Neighbours.{name}", Described(stated), rule)

    @property
    def forbids_negative_entries(self) -> bool:
        return self.geometry == ORTHOGONAL

    @property
    def unit_distance(self) -> float:
        """How far apart two neighbours' vectors of norm 1 can be."""
        return 2**0.5 if self.geometry == ORTHOGONAL else 2.0

    def relation_for(self, model: str) -> str:
        """Which two datasets must be indistinguishable."""
        return self.relation.get(model, _WHOLE_DEVICE if model == "device" else _ONE_RECORD)

    def basis_for(self, model: str) -> str:
        """Why the bound holds, or what is wrong with it."""
        return self.basis.get(model, _ANY_TRAINING)

    def judged_by_class_mean(self, model: str) -> bool:
        """Whether Lemma 1 is declared, which is not a valid bound."""
        return self.is_class_mean and model == "paper"

    def assumes_static_model(self, model: str) -> bool:
        """Whether the bound is that of a model which was not trained on the record."""
        return self.is_class_mean and model in ("paper", "class_mean")

    def statement(self, model: str, relabel: bool, trained: bool = False) -> list[str]:
        """The relation and the basis of the bound; `trained` says that the models were trained on the record."""
        basis = JUDGED_BY_CLASS_MEAN if self.judged_by_class_mean(model) else self.basis_for(model)
        if trained and self.assumes_static_model(model):
            basis = JUDGED_BY_DEVICE
        return [self.relation_for(model), basis, *([RELABEL] if relabel and self.is_class_mean else [])]

    def assumptions(self, model: str, constants: Mapping[str, Any]) -> Iterator[Assumption]:
        """What the sensitivity bound takes for granted and can turn out false."""
        if model == "device" or self.record_is_exact:
            return
        if self.record_assumption is not None:
            yield self.record_assumption
        elif model in ("paper", "class_mean"):
            yield Assumption(STATIC_MODEL, _STATIC if self.is_class_mean else _UNTRAINED)
        else:
            size = f"L1 = {constants['grad_lipschitz']:g}, L2 = {constants['model_lipschitz']:g}"
            yield Assumption("Lipschitz constants", f"Assumptions 1–3 hold with {size}.")
            bound = f"S = {constants['grad_norm_bound']:g}"
            yield Assumption(
                "bounded gradients", f"Per-sample gradients stay below {bound}; training does not clip them."
            )

    def to_header(self) -> dict[str, Any]:
        """What a ledger's header records: nothing of a built-in payload, whose name says it all."""
        return {} if self.payload in BUILT_IN else {"neighbours": asdict(self)}


CLASS_MEANS = Neighbours(
    "knowledge",
    ORTHOGONAL,
    {"paper": _ONE_RECORD_FEATURES, "class_mean": _ONE_RECORD_FEATURES},
    {
        "paper": "The bound is Lemma 1's √2/B_i, which is not valid: a class mean is over B_i^k samples, and the model "
        "was trained on the record. No guarantee follows from it.",
        "class_mean": _STATIC,
        "trajectory": "Assumptions 1–3 must hold for the declared L1 and L2, and per-sample gradients be clipped at S.",
    },
    is_class_mean=True,
)
PUBLIC_PREDICTIONS = Neighbours(
    "public knowledge",
    ORTHOGONAL,
    {"paper": _ONE_RECORD_FEATURES, "class_mean": _ONE_RECORD_FEATURES},
    dict.fromkeys(("paper", "class_mean", "trajectory", "device"), _PUBLIC_BASIS),
    declared=Assumption(
        "harmless public set",
        "The public samples, and how many of them a device may answer in a round, are public and were chosen without "
        "looking at private data.",
        declared=True,
    ),
)
TEACHER_VOTES = Neighbours(
    "votes",
    ORTHOGONAL,
    {"paper": _ONE_RECORD_FEATURES, "class_mean": _ONE_RECORD_FEATURES},
    dict.fromkeys(("paper", "class_mean", "trajectory", "device"), _VOTES_BASIS),
    declared=Assumption(
        "harmless public set",
        "The public samples, their order, the threshold, both noises and the numbers of queries and answers are public "
        "and were chosen without looking at private data.",
        declared=True,
    ),
)
GRADIENTS = Neighbours(
    "gradient",
    OPPOSITE,
    dict.fromkeys(("paper", "class_mean", "trajectory"), "Neighbours differ in one record, its label included."),
    dict.fromkeys(("paper", "class_mean", "trajectory"), _GRADIENT_BASIS),
    Assumption("separate samples", _GRADIENT_BASIS),
)
_EVERY_MODEL = ("paper", "class_mean", "trajectory", "device")
UPDATES = Neighbours("model update", OPPOSITE, {}, dict.fromkeys(_EVERY_MODEL, _UPDATES_BASIS))
HEAD_UPDATES = replace(
    UPDATES, payload="head update", declared=Assumption("public embedding", _PUBLIC_HEAD, declared=True)
)
FEATURE_MEANS = Neighbours(
    "feature means",
    OPPOSITE,
    dict.fromkeys(("paper", "class_mean", "trajectory"), "Neighbours differ in one record, its label included."),
    dict.fromkeys(("paper", "class_mean", "trajectory", "device"), _FEATURES_BASIS),
    declared=Assumption(
        "public embedding",
        "The embedding, the number of its features and the norms to which they are clipped were fixed from public data "
        "and from declared numbers alone, before any private sample was looked at.",
        declared=True,
    ),
    record_is_exact=True,
)
CLUSTER_MEANS = replace(
    FEATURE_MEANS,
    payload="feature means in clusters",
    geometry=ORTHOGONAL,
    basis=dict.fromkeys(FEATURE_MEANS.basis, _CLUSTERS_BASIS),
    declared=Assumption(
        "public clusters",
        "The clusters, their number, how a sample is assigned to one, and the norms to which vectors are clipped were "
        "fixed from public data and from declared numbers alone, before any private sample was looked at.",
        declared=True,
    ),
)
LATER_FEATURE_MEANS = replace(
    FEATURE_MEANS,
    payload="feature means, later in the server's features",
    basis=dict.fromkeys(FEATURE_MEANS.basis, _LATER_FEATURES_BASIS),
    declared=Assumption(
        "public embedding",
        "The first round's embedding, the number of features and the norms to which they are clipped were fixed from "
        "public data and from class counts alone, before any private sample was looked at. The embedding of a later "
        "round is computed from the server's model of the round before and from public samples alone; that model was "
        "made from charged releases and public data.",
        declared=True,
    ),
)
BUILT_IN = {
    each.payload: each
    for each in (
        CLASS_MEANS,
        PUBLIC_PREDICTIONS,
        TEACHER_VOTES,
        FEATURE_MEANS,
        CLUSTER_MEANS,
        LATER_FEATURE_MEANS,
        GRADIENTS,
        UPDATES,
        HEAD_UPDATES,
    )
}


def neighbours_from(payload: str, terms: Mapping[str, Any]) -> Neighbours:
    """The neighbouring relation of a ledger's payload, from its name or from its header's terms."""
    if payload in BUILT_IN:
        return BUILT_IN[payload]
    stored = dict(terms["neighbours"])
    for name in ("record_assumption", "declared"):
        stored[name] = None if stored[name] is None else Assumption(**stored[name])
    return Neighbours(**stored)
