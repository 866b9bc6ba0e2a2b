"""The sections of a scenario that describe learning: the public set, training, and the constants of the bounds."""

from __future__ import annotations

import math
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    StrictBool,
    StrictInt,
    StrictStr,
    model_serializer,
)

from airdistill.arrays import FloatArray
from airdistill.scenario.fields import (
    LARGEST_COUNT,
    Duration,
    Features,
    Frequency,
    NotNegative,
    Number,
    Offset,
    Positive,
    Power,
    Receiver,
    Rounds,
)


class Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")
    # Written only if they are used: the plans, digests and ledgers of all other scenarios stay as older versions
    # write and read them.
    _written_if_used: ClassVar[tuple[str, ...]] = ()

    @model_serializer(mode="wrap")
    def _without_unused(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        written: dict[str, Any] = write(self)
        unused = [
            name for name in self._written_if_used if getattr(self, name) == type(self).model_fields[name].default
        ]
        return {name: value for name, value in written.items() if name not in unused}


class Public(Section):
    """Unlabelled samples that all devices have; schemes on a public set transmit and distil predictions on them."""

    samples: StrictInt = Field(3000, ge=1, le=LARGEST_COUNT, description="number of samples")
    source: StrictStr = Field(
        "test",
        description='the first samples of the "test" set or the last of the "train" set, which are held out; or a '
        "folder or archive of IDX or CIFAR files (its training images), x_public of an .npz file or folder, a .npy or "
        ".csv file; no copy of a private or test sample",
    )
    samples_per_round: StrictInt | None = Field(
        None, ge=1, description="samples predicted in a round, in turn over the rounds; by default all"
    )
    answers_per_device: StrictInt | None = Field(
        None,
        ge=1,
        description="most samples that a device predicts in a round, its most certain ones; noise is planned for "
        "so many. By default in proportion to the classes that devices hold on average",
    )
    abstain: StrictBool | None = Field(
        None,
        description="devices are trained to be uncertain about unknown classes, and vote only if certain; by default "
        "as the scheme defines it",
    )
    abstain_weight: NotNegative = Field(
        1.0, description="abstain: β, weight of the uncertainty loss; not used if all samples are predicted"
    )
    train_copy: StrictBool = Field(
        False,
        description="devices train a copy of their model to answer, and learn from the broadcast with the model "
        "itself: one that knows all classes already (--after) would forget those that its device lacks",
    )
    confidence: Number = Field(0.0, ge=0, le=1, description="abstain: smallest predicted probability of a vote")
    client_selector: Literal["none", "density"] = Field(
        "none",
        description="samples that a device predicts: all, or those that the density ratio of its data accepts",
    )
    server_selector: NotNegative | None = Field(
        None,
        le=2,
        description="rows with a larger L1 distance from their nearest one-hot label are discarded",
    )
    temperature: Positive = Field(0.1, description="targets are softmax(row/temperature)")
    distill_epochs: StrictInt = Field(5, ge=0, description="epochs on the public set after a broadcast")
    distill_lr: Positive = Field(0.05, description="largest step size in them; it rises to this value and falls to 0")
    own_weight: NotNegative = Field(0.2, description="weight of a device's own samples relative to public ones in them")
    server_model: StrictStr | None = Field(
        None, description="receiver learning: the server's own model; by default the fleet's (the first group's)"
    )
    broadcast: Literal["predictions", "model"] = Field(
        "predictions",
        description="feature means, receiver learning: what devices receive, the server's predictions on the public "
        "samples, from which they learn, or its model, which they take over",
    )
    own_predictions: StrictBool = Field(
        False,
        description="feature means, broadcast predictions: devices train on their own samples first, and those that "
        "hold all classes multiply the probabilities that they receive by those of their own model",
    )
    later: Literal["repeat", "features"] = Field(
        "repeat",
        description="feature means, transmissions after the first: the same class means again, with new noise, or "
        "class means of features of the server's model that the round before has broadcast, the input of its last "
        'linear layer (needs broadcast = "model")',
    )
    embedding: StrictStr = Field(
        "auto",
        description="feature means: patches, contrastive or patches+contrastive (images), raw or random; or a frozen "
        "network of your own: a TorchScript file, package.module:function, or package.module:function@weights."
        "safetensors. auto: patches for images, raw for vectors",
    )
    features: Features = Field(
        "auto",
        description="feature means: numbers per class, at most a quarter of the public samples; auto: from the "
        "noise that the planner foresees",
    )
    feature_norm: Positive | None = Field(
        None,
        description="feature means: ρ, norm to which a device's whole vector is clipped; by default from the "
        "class counts and the number of features",
    )
    sample_norm: Positive | None = Field(
        None, description="feature means: ρ_s, norm to which one sample's features are clipped; by default √features"
    )

    answered: StrictInt | None = Field(
        None,
        ge=1,
        description="pate: most public samples that the aggregator answers; by default as many as the privacy target "
        "allows with noise of 16 % of the devices that know a class",
    )
    vote_threshold: Number | None = Field(
        None,
        ge=0,
        description="pate: largest count, as a share of the devices, that a public sample needs to be answered, after "
        "noise; by default 80 % of the devices that know a class on average",
    )
    vote_noise: Positive | None = Field(
        None,
        description="pate: σ2, deviation of the noise on every count of an answer, in votes; by default what uses the "
        "whole privacy target",
    )
    threshold_noise: Positive | None = Field(
        None, description="pate: σ1, deviation of the noise on the largest count, in votes; by default 3.75 σ2"
    )
    data_dependent: Literal["withheld", "published"] = Field(
        "withheld",
        description="pate: whether the certificate states the data-dependent ε, which is computed from private votes "
        "and was not sanitised; the guarantee never uses it",
    )

    _written_if_used: ClassVar[tuple[str, ...]] = (
        "answered", "vote_threshold", "vote_noise", "threshold_noise", "data_dependent", "broadcast",
        "own_predictions", "later", "train_copy", "embedding", "features", "feature_norm", "sample_norm",
    )  # fmt: skip

    @property
    def rows_a_round(self) -> int:
        """Samples predicted in a round."""
        return self.samples if self.samples_per_round is None else min(self.samples_per_round, self.samples)


class Learning(Section):
    """Training."""

    model: StrictStr = Field(
        "paper_cnn",
        description="model of the devices that are not in a group: paper_cnn, mlp, softmax_regression, resnet8, "
        "resnet14 or resnet20, with widths as in mlp-128-64 or resnet8-32, or package.module:factory",
    )
    rounds: Rounds = Field("optimal", description="optimal: the exact optimum; paper: eq. (21); or a number")
    fixed_rounds: StrictInt = Field(
        400, ge=1, le=LARGEST_COUNT, description="T of schemes whose number of rounds is not optimised"
    )
    max_rounds: StrictInt = Field(
        2000, ge=1, le=LARGEST_COUNT, description="largest number of rounds that the planner may choose"
    )
    initial_lr: Positive = Field(0.01, description="η0; the step size of round t is η0/√t, or as the schedule says")
    schedule: Literal["inverse_sqrt", "constant", "cosine"] = Field(
        "inverse_sqrt",
        description="step size of round t of T: η0/√t; η0; or η0 (1 + cos(π (t − 1)/T))/2, which needs a number of "
        "rounds. The same factor applies to public.distill_lr",
    )
    optimizer: Literal["sgd", "momentum", "adamw"] = Field(
        "sgd",
        description="devices' optimiser: plain steps (on a public set with momentum, anew in every round), SGD with "
        "momentum 0.9, or AdamW with weight decay 0.01; the state of the last two continues over rounds. Federated "
        "learning has sgd only",
    )
    distill_weight: NotNegative = Field(1.0, description="γ, weight of the distillation loss")
    local_epochs: StrictInt = Field(1, ge=0, description="epochs in a round; 0: one full-batch step")
    batch_size: StrictInt = Field(60, ge=1, description="samples in a minibatch")
    clip_norm: Positive = Field(1.0, description="per-sample gradient clip of federated learning")
    receiver: Receiver = Field(
        "linear",
        description="how the server estimates the average: as received, projected on the simplex, filtered over "
        "rounds, or, on a public set, with a model of its own",
    )
    knowledge_drift: Positive = Field(
        1e-3,
        description="tracking: initial drift of the average in a round, in proportion to which its components drift",
    )

    _written_if_used: ClassVar[tuple[str, ...]] = ("schedule", "optimizer")

    def step_size(self, round_index: int, peak: float | None = None) -> float:
        """The step size η_t of a round, from η0 or from another largest step size."""
        largest = self.initial_lr if peak is None else peak
        if self.schedule == "constant":
            return largest
        if self.schedule == "cosine":
            assert isinstance(self.rounds, int)  # validated with the scenario
            return largest * 0.5 * (1 + math.cos(math.pi * (round_index - 1) / self.rounds))
        return float(largest / math.sqrt(round_index))

    def step_sizes(self, num_rounds: int) -> FloatArray:
        """η_t of rounds 1 to T."""
        return np.array([self.step_size(index) for index in range(1, num_rounds + 1)])


class Federated(Section):
    """Federated averaging of clipped updates: `ota_fedavg` and `ota_head`, and `fedopt` without clip and noise."""

    update_norm: Positive = Field(
        1.0, description="C, norm to which a device's update is clipped; with clip_quantile that of the first round"
    )
    clip_quantile: Number | None = Field(
        None,
        gt=0,
        lt=1,
        description="adaptive clipping: share of the updates that the clip is to leave as they are. Devices then send "
        "whether it did, as one more entry that is charged with the update; by default the clip stays",
    )
    clip_rate: Positive = Field(
        0.2, le=10, description="adaptive clipping: the clip is multiplied by exp(-rate * (share left - quantile))"
    )
    server_optimizer: Literal["sgd", "momentum", "adam"] = Field(
        "sgd", description="how the server uses the mean update: as it is (FedAvg), FedAvgM, or FedAdam"
    )
    server_lr: Positive = Field(1.0, description="step size of the server")
    server_momentum: Number = Field(
        0.9, ge=0, lt=1, description="server_optimizer momentum and adam: decay of the mean update"
    )
    server_schedule: Literal["constant", "cosine"] = Field(
        "constant", description="cosine: the server's step size falls to 0 over the planned rounds"
    )


class Waveform(Section):
    """How numbers travel: one at a time on one tone, or on the resource elements of OFDM symbols."""

    kind: Literal["single_tone", "ofdm"] = Field(
        "single_tone",
        description="single_tone: one number in every radio.slot; ofdm: numbers on the tones of OFDM symbols, at which "
        "the other fields of this section apply",
    )
    tones: StrictInt = Field(
        612, ge=2, le=16384, description="tones that carry numbers; the one at the carrier is not used"
    )
    spacing: Frequency = Field(30e3, description="tone spacing, Hz")
    cyclic_prefix: Duration = Field(2.34e-6, description="cyclic prefix of a symbol, s; must exceed all delays")
    axes: Literal[1, 2] = Field(2, description="numbers in a resource element: on the real axis, or on both axes")
    spreading: Literal["none", "dft"] = Field(
        "dft",
        description="dft: the numbers of a symbol are scrambled and spread over all its tones, so that fades and peaks "
        "average out; none: every number has an element of its own, and the deepest fade limits the power",
    )
    fade_floor_db: Number = Field(
        -10.0,
        ge=-300,
        le=0,
        description="tones that fade deeper than this below a device's mean gain are sent as if they had it",
    )
    csi: Literal["pilot", "perfect"] = Field(
        "pilot", description="channel knowledge: from pilots, with their noise and age; or perfect, for comparison"
    )
    pilot: Literal["downlink", "uplink"] = Field(
        "downlink",
        description="downlink: one pilot of the server, and every device knows its channel by reciprocity; uplink: one "
        "pilot of every device, one after another, and the server sends each device its channel",
    )
    pilot_symbols: StrictInt = Field(4, ge=1, le=1000, description="OFDM symbols of a pilot")
    pilot_power: Power = Field(
        40.0, description="transmit power of the server's pilot, W; devices send theirs at peak power"
    )
    feedback_bits: StrictInt = Field(
        8, ge=1, le=64, description="bits in which a device reports its channel gain, and the server the scale"
    )
    guard: Duration = Field(10e-6, description="guard time whenever the link changes direction, s")
    speed: NotNegative = Field(1.4, description="speed of the devices, m/s")
    observed: Literal["samples", "elements"] = Field(
        "samples",
        description="what the server keeps of its receiver's output, and the guarantee covers: every sample, cyclic "
        "prefixes included; or demodulated resource elements only, which certificates name as an assumption",
    )
    carrier_offset: Offset = Field(0.0, description="largest carrier offset of a device, Hz; drawn within ± this value")
    phase_noise: Offset = Field(0.0, description="linewidth of each device's oscillator, Hz (Wiener phase noise)")
    timing_error: Duration = Field(0.0, description="largest timing error of a device, s; drawn from 0 to this value")
    amplifier: Literal["linear", "clip", "rapp"] = Field(
        "linear", description="devices' power amplifier: linear, an ideal limiter, or Rapp's model with smoothness 2"
    )
    backoff_db: Number = Field(
        12.0, ge=-20, le=60, description="amplifier: its saturation power over a device's peak_power, dB"
    )
    adc_bits: StrictInt | None = Field(
        None, ge=2, le=24, description="bits of the receiver's converter in each axis; by default unlimited"
    )


class Constants(Section):
    """Constants of the convergence bound; the defaults fit the paper's network on MNIST."""

    grad_lipschitz: Positive = Field(22.0, description="L1, Lipschitz constant of the loss gradient")
    model_lipschitz: Positive = Field(7.7, description="L2, Lipschitz constant of the model's output")
    grad_norm_bound: Positive = Field(4.0, description="S, bound of the per-sample gradient norm")
    loss_bound: Positive = Field(2.5, description="f_max, bound of the local loss")
    source: Literal["declared", "synthetic", "public", "private"] = Field(
        "declared", description="their source: declared, or the data of the pilot that measured them"
    )
