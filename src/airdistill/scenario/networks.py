"""Names of built-in networks, and the samples that each can take. PyTorch is not needed to reject a wrong one."""

from __future__ import annotations

import re

from airdistill.errors import InputError, did_you_mean

RESNETS = {f"resnet{layers}": layers for layers in (8, 14, 20)}
NETWORKS = ("paper_cnn", "mlp", "softmax_regression", *RESNETS)
CHANNELS_IN_GROUP = 8
_LARGEST_WIDTH = 4096
_SMALLEST_SIDE = 14  # of an image, for the two convolutions and poolings of the paper's network
_COLOURS = (1, 3, 4)
_WIDTH = r"[1-9]\d{0,3}"


def check_network(name: str, field: str) -> None:
    """Reject a name that is neither a built-in network, possibly with widths, nor `package.module:factory`."""
    if ":" in name or name in NETWORKS:
        return
    family, *texts = name.split("-")
    if family != "mlp" and family not in RESNETS:
        rule = f"must be one of {', '.join(NETWORKS)}, with widths such as mlp-128-64, or your own as "
        raise InputError(field, name, f"{rule}package.module:factory{did_you_mean(name, NETWORKS)}")
    if not all(re.fullmatch(_WIDTH, text) and int(text) <= _LARGEST_WIDTH for text in texts):
        raise InputError(field, name, f"widths must be whole numbers from 1 to {_LARGEST_WIDTH}, as in {family}-32")
    if family != "mlp" and (len(texts) > 1 or int(texts[0]) % CHANNELS_IN_GROUP):
        rule = f"takes one width, a multiple of {CHANNELS_IN_GROUP}: that of its first stage, as in {family}-32"
        raise InputError(field, name, rule)


def widths_of(name: str) -> tuple[str, tuple[int, ...]]:
    """The family of a built-in network and the widths behind its name: `mlp-128-64` is mlp, (128, 64)."""
    family, *texts = name.split("-")
    return family, tuple(map(int, texts))


def input_shape_of(sample: tuple[int, ...]) -> tuple[int, ...]:
    """The shape in which a model takes such samples: greyscale images get a channel axis, colours come first.

    >>> input_shape_of((28, 28)), input_shape_of((32, 32, 3)), input_shape_of((12,))
    ((1, 28, 28), (3, 32, 32), (12,))
    """
    if len(sample) == 2:
        return (1, *sample)
    if len(sample) == 3 and sample[2] in _COLOURS and sample[0] not in _COLOURS:
        return (sample[2], *sample[:2])
    return sample


def check_takes(name: str, input_shape: tuple[int, ...], field: str) -> None:
    """Reject a built-in network that cannot take samples of this shape `(channel, row, column)` or `(feature,)`."""
    if ":" in name or name.startswith(("mlp", "softmax_regression")):
        return
    if len(input_shape) != 3:
        rule = f"needs images [row, column] or [channel, row, column], not samples of shape {input_shape}; use mlp"
        raise InputError(field, name, rule)
    height, width = input_shape[1:]
    if name == "paper_cnn" and min(height, width) < _SMALLEST_SIDE:
        rule = f"needs images of at least {_SMALLEST_SIDE} × {_SMALLEST_SIDE} pixels, not {height} × {width}"
        raise InputError(field, name, f"{rule}; use resnet8 or mlp")
