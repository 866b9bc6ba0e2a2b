"""What a device says of the public samples: its predictions, or votes on what it knows and nothing on the rest.

However it comes to them, its answers keep to the bound that its privacy rests on: no more of them than was agreed, no
entry below zero, and none of a norm above 1.
"""

from __future__ import annotations

import numpy as np

from airdistill.arrays import FloatArray

_ROUNDING = 1e-9


def votes(predictions: FloatArray, confidence: float) -> FloatArray:
    """One-hot where the largest probability `[..., sample, class]` reaches `confidence`, zeros elsewhere."""
    surest = predictions.argmax(axis=-1)
    chosen = np.eye(predictions.shape[-1])[surest]
    return np.where(predictions.max(axis=-1, keepdims=True) >= confidence, chosen, 0.0)


def surest_answers(answers: FloatArray, sureness: FloatArray, most: int) -> FloatArray:
    """Of each device's answers `[device, sample, class]` the `most` with the largest sureness `[device, sample]`; the
    others are zeros. Of equally sure ones the first are kept."""
    if most >= answers.shape[1]:
        return answers
    said = answers.any(axis=-1)
    order = np.argsort(np.where(said, -sureness, np.inf), axis=1, kind="stable")
    kept = np.zeros(said.shape, dtype=np.bool_)
    np.put_along_axis(kept, order[:, :most], values=True, axis=1)
    return np.where(kept[..., None], answers, 0.0)


def check_answers(answers: FloatArray, most: int) -> None:
    """Raises if a device's answers `[device, sample, class]` break the bound that hides them."""
    said = answers.any(axis=-1).sum(axis=1)
    if said.max() > most:
        raise ValueError(f"device {int(said.argmax())} answers {said.max()} samples, where {most} were agreed")
    least = answers.min(axis=(1, 2))
    if least.min() < 0:
        raise ValueError(
            f"device {int(least.argmin())} has an answer with an entry of {least.min():.3g}: must be 0 or more"
        )
    norms = np.linalg.norm(answers, axis=-1).max(axis=1)
    if not norms.max() <= 1 + _ROUNDING:
        raise ValueError(f"device {int(norms.argmax())} has an answer of norm {norms.max():.3g}: must be 1 at most")


def sharpened(rows: FloatArray, temperature: float) -> FloatArray:
    """softmax(row/temperature), `[row, class]`: a row of any numbers becomes a surer prediction (DS-FL's ERA)."""
    scaled = rows / temperature
    scaled = np.exp(scaled - scaled.max(axis=-1, keepdims=True))
    return np.asarray(scaled / scaled.sum(axis=-1, keepdims=True))
