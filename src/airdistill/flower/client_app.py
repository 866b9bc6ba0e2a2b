"""The device as Flower calls it: messages around `device`, and nothing else.

All that a device goes by comes from its own SuperNode's `--node-config`: its folder, its number and the scheme. From
the server it takes a round's number and what is broadcast.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from airdistill.errors import InputError
from airdistill.flower.device import Device
from airdistill.runs.folder import locked

app = ClientApp()


@app.query("who")
def who(message: Message, context: Context) -> Message:
    with _device(context) as device:
        said = ConfigRecord({"device": device.number, "terms": device.station.digest, "last_round": device.last_round})
    return Message(RecordDict({"said": said}), reply_to=message)


@app.train("signal")
def signal(message: Message, context: Context) -> Message:
    round_index = _round_of(message)
    with _device(context) as device:
        sent = ArrayRecord({"signal": Array(device.signal(round_index))})
    said = ConfigRecord({"device": device.number, "round": round_index})
    return Message(RecordDict({"sent": sent, "said": said}), reply_to=message)


@app.train("learn")
def learn(message: Message, context: Context) -> Message:
    round_index = _round_of(message)
    heard = message.content.array_records.get("heard")
    broadcast = None if heard is None else heard["broadcast"].numpy()
    evaluate = bool(message.content.config_records["asked"]["evaluate"])
    with _device(context) as device:
        lesson = device.learn(round_index, broadcast, evaluate)
    said = ConfigRecord({"device": device.number, "round": round_index, **lesson.to_dict()})
    return Message(RecordDict({"said": said}), reply_to=message)


@contextmanager
def _device(context: Context) -> Iterator[Device]:
    """Under the lock of its folder: no second message, nor a second SuperNode, may charge its ledger meanwhile."""
    settings = context.node_config
    for name in ("folder", "device", "scheme"):
        if name not in settings:
            raise InputError(f"--node-config {name}", "(not given)", "a device needs folder, device and scheme")
    folder = Path(str(settings["folder"]))
    with locked(folder):
        yield Device(folder, int(settings["device"]), str(settings["scheme"]))


def _round_of(message: Message) -> int:
    asked = message.content.config_records["asked"]["round"]
    if not isinstance(asked, int):
        raise InputError("round", str(asked), "must be a whole number")
    return asked
