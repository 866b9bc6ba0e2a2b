"""A scenario in full, frozen and validated: every field, its default, its unit and its rule.

Defaults are the sound choices: the whole device is protected (`device`), the accountant is exact, and only
the fleet's own noise counts (`fleet_noise`).
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StrictBool,
    StrictInt,
    StrictStr,
    field_validator,
    model_validator,
)

from airdistill.errors import NOT_GIVEN, Described, InputError
from airdistill.scenario.fields import (
    LARGEST_COUNT,
    DeltaPerDevice,
    EpsilonPerDevice,
    Frequency,
    Length,
    MetresPerDevice,
    NotNegative,
    Number,
    Positive,
    Power,
    Rounds,
    SamplesPerDevice,
    Time,
    Truncation,
    WattsPerDevice,
)
from airdistill.scenario.per_device import PerDevice
from airdistill.scenario.rules import (
    check_antennas,
    check_medium,
    check_noise,
    check_paper_transceiver,
    check_participation,
    check_threegpp,
)

MOST_DEVICES = 10**7
NAME_PATTERN = r"^\w[\w.-]{0,99}$"


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Group(_Section):
    """Devices that share a model."""

    count: StrictInt = Field(ge=1, le=MOST_DEVICES, description="how many devices")
    model: StrictStr = Field(description="the model that they train")


class Fleet(_Section):
    """Who takes part."""

    devices: StrictInt | None = Field(None, ge=1, le=MOST_DEVICES, description="how many devices; or give groups")
    groups: tuple[Group, ...] = Field((), description="devices by model, each with a count and a model")
    min_devices: StrictInt = Field(1, ge=1, description="a round needs at least so many")
    expected_dropouts: StrictInt = Field(
        0,
        ge=0,
        description="medium secure_sum: so many devices may be missing from a round's sum, and the noise of the others "
        "still hides everybody; with more the devices refuse to unmask it",
    )
    sampling: Literal["none", "with_replacement"] = Field(
        "none", description="who sends gradients in a round: everybody, or so many as drawn by their share of the data"
    )
    sampled_devices: StrictInt | None = Field(
        None, ge=1, le=MOST_DEVICES, description="draws a round of sampling with replacement"
    )
    participation: Number = Field(
        1.0,
        gt=0,
        le=1,
        description="probability with which a device takes part in a round, by its own coin; the server sees whom it "
        "aligns, so that a round counts in full for who takes part, and not at all for the others",
    )
    participation_hidden: StrictBool = Field(
        False,
        description="the server does not see the coins: all send noise in every round; amplifies for whole devices",
    )


class Data(_Section):
    """What the devices hold."""

    dataset: StrictStr = Field("mnist", description='"mnist" (embedded), a folder of IDX files, or an .npz file')
    samples_per_device: SamplesPerDevice | None = Field(
        None, description="one count, a range, or a list; by default the training set is shared out evenly"
    )
    partition: Literal["iid", "dirichlet", "shards"] = Field("iid", description="how classes fall to devices")
    alpha: Positive | None = Field(None, description="dirichlet: concentration, small is skewed")
    classes_per_device: StrictInt | None = Field(None, ge=1, description="shards: classes each device holds")
    class_counts: tuple[tuple[StrictInt, ...], ...] | None = Field(
        None, description="samples by device and class, to plan without data; stands for the fields above"
    )

    @field_validator("class_counts")
    @classmethod
    def _rectangular(cls, counts: tuple[tuple[int, ...], ...] | None) -> tuple[tuple[int, ...], ...] | None:
        if counts is None:
            return None
        if not counts or not counts[0] or len({len(row) for row in counts}) != 1:
            raise ValueError("must be a table of one row per device, each with one count per class")
        if min(min(row) for row in counts) < 0 or max(max(row) for row in counts) > LARGEST_COUNT:
            raise ValueError(f"counts must lie between 0 and {LARGEST_COUNT}, none of them negative")
        for device, row in enumerate(counts):
            if not any(row):
                raise ValueError(f"device {device} has no data; leave it out of the fleet")
        return counts


class Public(_Section):
    """Unlabelled samples that everybody has: what devices answer in the schemes of a public set, and learn from."""

    samples: StrictInt = Field(3000, ge=1, le=LARGEST_COUNT, description="how many")
    source: StrictStr = Field(
        "test",
        description='held out of the "test" set (its first) or of the "train" set (its last); or a folder of IDX files '
        "(its training images), or an .npz file (x_public or x_train)",
    )
    samples_per_round: StrictInt | None = Field(
        None, ge=1, description="how many are answered in a round, the next ones in each; by default all"
    )
    answers_per_device: StrictInt | None = Field(
        None,
        ge=1,
        description="the most that a device may answer in a round, its surest; noise is planned for so many. By "
        "default the share of the classes that devices know on average",
    )
    abstain: StrictBool | None = Field(
        None,
        description="devices learn to be unsure of what they do not know, and vote or send nothing; by default as the "
        "scheme has it",
    )
    abstain_weight: NotNegative = Field(
        1.0, description="abstain: β, weight of being unsure on public samples; none where all samples are answered"
    )
    confidence: Number = Field(0.0, ge=0, le=1, description="abstain: the least probability to vote with")
    client_selector: Literal["none", "density"] = Field(
        "none", description="which samples a device answers: all, or those that its own data's density ratio accepts"
    )
    server_selector: NotNegative | None = Field(
        None,
        le=2,
        description="leaves out rows that are farther than this (L1) from their nearest label",
    )
    temperature: Positive = Field(0.1, description="rows are sharpened to softmax(row/temperature) to learn from")
    distill_epochs: StrictInt = Field(5, ge=0, description="passes over the public set after a broadcast")
    distill_lr: Positive = Field(0.05, description="largest step size of these passes; it rises to that and falls to 0")
    own_weight: NotNegative = Field(0.2, description="weight of a device's own samples beside the public ones in them")
    server_model: StrictStr | None = Field(
        None, description="receiver learning: the server's own model; by default the fleet's (the first group's)"
    )

    @property
    def rows_a_round(self) -> int:
        return self.samples if self.samples_per_round is None else min(self.samples_per_round, self.samples)


class Radio(_Section):
    """The uplink."""

    peak_power: WattsPerDevice = Field(PerDevice("same", (1e-3,)), description="transmit power limit of a device, W")
    noise_power: Power = Field(5e-15, description="noise power of the receiver, W")
    noise: Literal["complex", "real"] = Field(
        "complex", description="complex: half of the noise lies on the decision axis; real: all of it"
    )
    carrier: Frequency = Field(915e6, description="carrier frequency, Hz")
    distance: MetresPerDevice = Field(PerDevice("range", (100.0, 500.0)), description="from device to server, m")
    path_loss_exponent: NotNegative = Field(
        3.0,
        le=10,
        description="of the path loss, which is a power gain; umi, uma and rma have one of their own",
    )
    fading: Literal[
        "rayleigh", "rician", "real_gaussian", "none",
        "umi", "uma", "rma", "tdl-a", "tdl-b", "tdl-c", "tdl-d", "tdl-e",
    ] = Field(
        "rayleigh",
        description="small-scale fading, new in every round; umi, uma, rma: cells of 3GPP TR 38.901, with path loss, "
        "line of sight and shadowing, drawn once; tdl-a to tdl-e: its tapped delay lines",
    )  # fmt: skip
    rician_k_db: Number = Field(
        6.0, ge=-100, le=100, description="rician: power of the direct path over the scattered, dB"
    )
    server_height: Length | None = Field(
        None, description="umi, uma, rma: of the server's antenna, m; by default 10, 25 and 35"
    )
    device_height: Length = Field(1.5, description="umi, uma, rma: of a device's antenna, m; distance is on the ground")
    line_of_sight: Literal["drawn", "always", "never"] = Field(
        "drawn", description="umi, uma, rma: whether a device sees the server; drawn: the nearer, the likelier"
    )
    delay_spread: Time = Field(
        100e-9, description="tdl-a to tdl-e: rms delay spread, s; at most a tenth of a slot, which is one tone then"
    )
    gains: tuple[tuple[Number, Number], ...] | None = Field(
        None, description="complex gain [re, im] of every device, for good; stands for distance and fading"
    )
    trace: StrictStr | None = Field(
        None, description=".npz or .csv of complex gains, rounds × devices; stands for distance and fading"
    )
    antennas: StrictInt = Field(
        1,
        ge=1,
        le=1024,
        description="of the server; with several a curious server is taken to look at every one of them",
    )
    combining: Literal["joint", "per_class"] = Field(
        "joint", description="several antennas: one receive combiner for all classes, or one for each"
    )
    slot: Time = Field(3.6e-6, description="time of one transmitted number, s")
    outage: Number = Field(0.05, ge=0, lt=1, description="share of worst rounds that the planner leaves out")
    transceiver: Literal["optimal", "paper"] = Field(
        "optimal", description="optimal for the trust model; or eqs. (18)-(20) as printed, which can fail"
    )
    truncation: Truncation = Field(
        0.0, description='power gain |h|² below which a device is silent in a round: 0, a number, "-100 dB", or optimal'
    )
    csi_error_db: Number | None = Field(
        None,
        ge=-300,
        le=0,
        description="power of the relative error of channel estimates, dB; by default there is none",
    )
    csi_quantile: Number = Field(
        0.999, gt=0, lt=1, description="quantile at which that error is cut off: privacy is promised up to there"
    )


class Air(_Section):
    """Who adds the signals up where devices are real; a simulation plays the radio channel itself."""

    medium: Literal["emulated", "secure_sum", "radio"] = Field(
        "emulated",
        description="emulated: the server plays the channel and sees single signals, for test-beds; secure_sum: secure "
        "aggregation, the server sees the sum alone; radio: hardware behind an interface",
    )


class Privacy(_Section):
    """What must stay hidden, from whom, and by whose noise."""

    epsilon: EpsilonPerDevice = Field(description="privacy target of a device over the whole run; inf asks for none")
    delta: DeltaPerDevice = Field(description="failure probability of that target")
    sensitivity: Literal["paper", "class_mean", "trajectory", "device"] = Field(
        "device", description="what one neighbour change can move; only `device` is sound for any training"
    )
    relabel: StrictBool = Field(False, description="the changed record may change its label too")
    accountant: Literal["paper", "exact"] = Field("exact", description="from (ε, δ) to noise")
    trust: Literal["receiver_noise", "fleet_noise", "own_noise"] = Field(
        "fleet_noise", description="whose noise counts as protection"
    )
    noise: Literal["seeded", "secure"] = Field(
        "seeded",
        description="the devices' noise. seeded: reproducible, for simulation only; secure: discrete, from the system",
    )
    carry_over: StrictBool = Field(
        False, description="what a round protects beyond its share is left to the later rounds"
    )
    class_budget: Literal["equal", "optimal"] = Field(
        "equal", description="joint models (trajectory, device): how a device's budget is shared out over its classes"
    )


class Learning(_Section):
    """How the devices learn."""

    model: StrictStr = Field("paper_cnn", description="the model of every device outside a group")
    rounds: Rounds = Field("optimal", description="optimal: the exact optimum; paper: eq. (21); or a number")
    fixed_rounds: StrictInt = Field(
        400, ge=1, le=LARGEST_COUNT, description="T of the schemes whose rounds are not optimised"
    )
    max_rounds: StrictInt = Field(
        2000, ge=1, le=LARGEST_COUNT, description="the most rounds that the planner may choose"
    )
    initial_lr: Positive = Field(0.01, description="η0; round t steps with η0/√t")
    distill_weight: NotNegative = Field(1.0, description="γ, weight of the distillation loss")
    local_epochs: StrictInt = Field(1, ge=0, description="passes over the data a round; 0: one full-batch step")
    batch_size: StrictInt = Field(60, ge=1, description="samples in a minibatch")
    clip_norm: Positive = Field(1.0, description="per-sample gradient clip of federated learning")
    receiver: Literal["linear", "projected", "tracking", "learning"] = Field(
        "linear",
        description="how the server estimates the knowledge: as received, on the simplex, filtered over rounds, or, on "
        "a public set, learned by a model of its own",
    )
    knowledge_drift: Positive = Field(
        1e-3, description="tracking: how fast knowledge is first thought to move; each part's drift is in proportion"
    )


class Constants(_Section):
    """Constants of the convergence bound; the defaults fit the paper's network on MNIST."""

    grad_lipschitz: Positive = Field(22.0, description="L1, Lipschitz constant of the loss gradient")
    model_lipschitz: Positive = Field(7.7, description="L2, Lipschitz constant of the model's output")
    grad_norm_bound: Positive = Field(4.0, description="S, bound of the per-sample gradient norm")
    loss_bound: Positive = Field(2.5, description="f_max, bound of the local loss")
    source: Literal["declared", "synthetic", "public", "private"] = Field(
        "declared", description="where they come from: declared, or the data of the pilot that measured them"
    )


class Scenario(_Section):
    """All that is given."""

    name: StrictStr = Field("scenario", pattern=NAME_PATTERN, description="names the run and its folder")
    seed: StrictInt = Field(0, ge=0, description="root of every random draw")
    fleet: Fleet = Field(description="who takes part")
    data: Data = Field(default_factory=Data, description="what the devices hold")
    public: Public | None = Field(None, description="unlabelled samples that everybody has")
    radio: Radio = Field(default_factory=Radio, description="the uplink")
    air: Air = Field(default_factory=Air, description="who adds the signals up")
    privacy: Privacy = Field(description="what must stay hidden")
    learning: Learning = Field(default_factory=Learning, description="how the devices learn")
    constants: Constants = Field(default_factory=Constants, description="of the convergence bound")
    overrides: dict[str, dict[str, Any]] = Field(default_factory=dict, description="what a scheme changes of the above")

    @property
    def num_devices(self) -> int:
        if self.fleet.devices is not None:
            return self.fleet.devices
        return sum(group.count for group in self.fleet.groups)

    @property
    def model_names(self) -> list[str]:
        """The model of every device, in order."""
        if not self.fleet.groups:
            return [self.learning.model] * self.num_devices
        return [group.model for group in self.fleet.groups for _ in range(group.count)]

    def learning_numbers(self) -> dict[str, Any]:
        """The fields of `learning` and `constants` by name: what bounds on learning are made of."""
        return {**vars(self.learning), **vars(self.constants)}

    @model_validator(mode="after")
    def _consistent(self) -> Scenario:
        self._check_fleet()
        self._check_partition()
        self._check_device_lists()
        check_paper_transceiver(self)
        check_noise(self)
        check_medium(self)
        check_threegpp(self.radio, self.num_devices)
        check_antennas(self)
        return self

    def _check_fleet(self) -> None:
        grouped = sum(group.count for group in self.fleet.groups)
        if self.num_devices == 0:
            raise InputError("fleet.devices", NOT_GIVEN, "a fleet needs devices, or groups with counts")
        if grouped not in (0, self.num_devices):
            raise InputError("fleet.devices", self.fleet.devices, f"the groups hold {grouped} devices")
        if self.fleet.min_devices > self.num_devices:
            raise InputError("fleet.min_devices", self.fleet.min_devices, f"the fleet has only {self.num_devices}")
        if self.fleet.sampling == "with_replacement" and self.fleet.sampled_devices is None:
            raise InputError("fleet.sampled_devices", NOT_GIVEN, 'sampling "with_replacement" needs a number of draws')
        check_participation(self)

    def _check_partition(self) -> None:
        counts = self.data.class_counts
        if counts is not None:
            if len(counts) != self.num_devices:
                shape = Described(f"{len(counts)} rows × {len(counts[0])} columns")
                raise InputError(
                    "data.class_counts",
                    shape,
                    f"must have one row for each of the {self.num_devices} devices",
                )
        elif self.data.partition == "dirichlet" and self.data.alpha is None:
            raise InputError("data.alpha", NOT_GIVEN, 'partition "dirichlet" needs a concentration')
        elif self.data.partition == "shards" and self.data.classes_per_device is None:
            raise InputError("data.classes_per_device", NOT_GIVEN, 'partition "shards" needs a number')

    def _check_device_lists(self) -> None:
        lists: dict[str, int] = {}
        for section, field in [
            ("radio", "peak_power"), ("radio", "distance"), ("privacy", "epsilon"), ("privacy", "delta"),
            ("data", "samples_per_device"),
        ]:  # fmt: skip
            value = getattr(getattr(self, section), field)
            if value is not None and value.kind == "list":
                lists[f"{section}.{field}"] = len(value.numbers)
        if self.radio.gains is not None:
            lists["radio.gains"] = len(self.radio.gains)
        for field, length in lists.items():
            if length != self.num_devices:
                rule = f"must have one entry for each of the {self.num_devices} devices"
                raise InputError(field, Described(f"{length} entries"), rule)
        if self.radio.gains is not None and self.radio.trace is not None:
            raise InputError("radio.trace", self.radio.trace, "give gains or a trace, not both")
