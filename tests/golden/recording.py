"""Plays a case through the public interface, and keeps of its folder all that must stay as it is.

Kept are numbers, booleans, nulls, keys and identifiers. Sentences may be reworded; digests cover sentences, and
versions and paths belong to a machine: of these only the key is kept.
"""

import hashlib
import json
import re
import shutil
from collections import Counter
from contextlib import contextmanager
from unittest import mock
from zlib import crc32

import numpy as np
from safetensors.numpy import load_file

import airdistill as ad  # the only import from the project, and nothing but what it exports

FILES = {"plan": "plan.json", "ledger": "ledger.jsonl", "rounds": "rounds.jsonl"}
FILES |= {"summary": "summary.json", "certificate": "certificate.json"}
WEIGHTS = "weights"
_SHORT = 64  # arrays of weights up to this length are kept in full, and longer ones in a few sums
_LONGEST_IDENTIFIER = 60
_NOT_KEPT = {
    "(digest)": re.compile(r"[0-9a-f]{32,}"),
    "(version)": re.compile(r"\d+\.\d+\S*"),
    "(path)": re.compile(r"/\S+"),
}
SENTENCE = "(sentence)"


def write_inputs(folder):
    """The files that cases name as `{inputs}`: blobs of three classes, images, and the channels of eight rounds."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(20)
    _write_blobs(folder / "blobs.npz", rng, (4,), 60, 24)
    _write_blobs(folder / "images.npz", rng, (28, 28), 18, 6)
    gains = rng.standard_normal((8, 3)) + 1j * rng.standard_normal((8, 3))
    gains *= np.array([8e-6, 2e-6, 4e-6])
    gains[1, 2] *= 0.02  # a deep fade, in which truncated channel inversion sends nothing
    np.savez(folder / "trace.npz", channel=gains)
    return folder


def _write_blobs(path, rng, shape, num_train, num_test):
    centres = 1.5 * rng.standard_normal((3, *shape))
    labels = {"train": np.arange(num_train) % 3, "test": np.arange(num_test) % 3}
    samples = {part: centres[which] + rng.standard_normal((len(which), *shape)) for part, which in labels.items()}
    arrays = {f"x_{part}": samples[part] for part in samples} | {f"y_{part}": labels[part] for part in labels}
    np.savez(path, **arrays)


def observe(case, inputs, folder):
    """What a case comes to, by file: `{"refused": ...}` alone if the program refuses it."""
    options = ad.RunOptions(
        device="cpu", engine="torch", threads=1, dtype=case.dtype, chunk_samples=300, eval_every=2, checkpoint_every=1
    )
    before = None if case.after is None else folder / "before"
    shutil.rmtree(folder, ignore_errors=True)
    try:
        with _replayed_noise():
            if before is not None:
                earlier = _scenario(case, inputs, case.after)
                ad.run(earlier, case.scheme, out=before, options=options)
            ad.run(_scenario(case, inputs), case.scheme, out=folder / "run", options=options, ledger=before)
    except ad.AirDistillError as error:
        return {"refused": {"error": _kind(error), "field": getattr(error, "field", None)}}
    return _contents(folder / "run")


def _kind(error):
    """The name of its type; several errors of a scenario, told at once, are the first of them."""
    names = [each.__name__ for each in type(error).__mro__]
    return "InputError" if "InputError" in names else names[0]


def _scenario(case, inputs, more=()):
    return ad.load(case.preset, [change.replace("{inputs}", str(inputs)) for change in (*case.changes, *more)])


@contextmanager
def _replayed_noise():
    """Secure noise from seeds, in place of OpenDP's from the operating system: its digests would always differ.

    Draws are told apart by deviation, length and how many there were before, so that devices may draw in any order.
    """
    import opendp.measurements

    drawn = Counter()

    def make_gaussian(*_space, scale):
        def measure(values):
            key = (f"{scale:.6e}", len(values))
            drawn[key] += 1
            rng = np.random.default_rng([crc32(repr(key).encode()), drawn[key]])
            noise = np.rint(scale * rng.standard_normal(len(values)))
            return [value + int(each) for value, each in zip(values, noise, strict=True)]

        return measure

    with mock.patch.object(opendp.measurements, "make_gaussian", make_gaussian):
        yield


def _contents(folder):
    contents = {}
    for name, file in FILES.items():
        text = (folder / file).read_text()
        stored = [json.loads(line) for line in text.splitlines()] if file.endswith("l") else json.loads(text)
        contents[name] = _kept(_written_out(stored) if name == "ledger" else stored)
    last = max(folder.glob("checkpoint-*.safetensors"))
    contents[WEIGHTS] = {name: _array(array) for name, array in sorted(load_file(last).items())}
    return contents


def _written_out(lines):
    """A ledger's lines with what is "as before" written out: whether the last bit is the same is the processor's."""
    full = []
    for line in lines:
        before = next((each for each in reversed(full) if each["kind"] == line["kind"]), None)
        full.append(_filled_in(line, before))
    return full


def _filled_in(value, before):
    if value == "as before":
        return before
    if isinstance(value, dict) and isinstance(before, dict):
        return {key: _filled_in(each, before.get(key)) for key, each in value.items()}
    return value


def _kept(value):
    if isinstance(value, dict):
        return {key: _kept(value[key]) for key in sorted(value)}
    if isinstance(value, list):
        return [kept for kept in map(_kept, value) if kept != SENTENCE]
    return _kept_text(value) if isinstance(value, str) else value


def _kept_text(text):
    for stand_in, pattern in _NOT_KEPT.items():
        if pattern.fullmatch(text):
            return stand_in
    return SENTENCE if len(text) > _LONGEST_IDENTIFIER or re.search(r"\s", text) else text


def _array(array):
    described = {"type": str(array.dtype), "shape": list(array.shape)}
    numbers = array.astype(np.float64).ravel()
    if numbers.size <= _SHORT:
        return {**described, "numbers": numbers.tolist()}
    mixed = np.random.default_rng(numbers.size).standard_normal((4, numbers.size)) @ numbers
    sums = [float(numbers.sum()), float(np.abs(numbers).sum()), *mixed.tolist()]
    return {**described, "sums": sums, "digest": hashlib.sha256(array.tobytes()).hexdigest()}


def digest_of(content):
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:20]
