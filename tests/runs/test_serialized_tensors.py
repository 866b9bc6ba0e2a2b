"""Checkpoints in the safetensors format, against the library's own reader and writer."""

import torch
from safetensors.torch import load, save

from airdistill.runs import checkpoint
from airdistill.runs.checkpoint import _TYPES, SerializedTensors, serialized

NUMBERS = torch.arange(24).reshape(1, 2, 3, 4)


def test_the_library_reads_every_type_and_layout():
    tensors = {name: (NUMBERS % 2).to(getattr(torch, name.removeprefix("torch."))) for name in _TYPES}
    tensors |= {"last": NUMBERS.float().to(memory_format=torch.channels_last), "transposed": NUMBERS.float().mT}
    tensors |= {"scalar": torch.tensor(0.5), "empty": torch.empty(0, 3), "shared": tensors["last"], "ü ": torch.ones(3)}
    tensors["trained"] = torch.ones(2, requires_grad=True)
    found = load(serialized(tensors))
    assert found.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor.detach())
    assert load(serialized({})) == {}


def test_the_file_equals_the_librarys_up_to_the_order_of_its_header():
    tensors = {name: torch.randn(3, 2) for name in "abc"}
    ours, theirs = serialized(tensors), save(tensors)
    assert len(ours) == len(theirs)
    assert ours[-72:] == theirs[-72:]


def test_large_tensors_are_written_in_parts(monkeypatch):
    tensors = {f"{device}.{name}": torch.randn(5, 2) for device in range(9) for name in "ab"}
    whole = serialized(tensors)
    monkeypatch.setattr(checkpoint, "_PART_BYTES", 100)
    content = SerializedTensors(tensors)
    parts = [bytes(part) for part in content]
    assert max(map(len, parts[1:])) <= 100
    assert (b"".join(parts), content.num_bytes) == (whole, len(whole))
