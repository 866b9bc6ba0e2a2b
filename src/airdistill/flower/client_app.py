"""The ClientApp: Flower's messages for `device`, without any logic of the scheme.

All settings of a device come from the `--node-config` of its own SuperNode: its folder, its number, the scheme, its own
data and, if there are any, its radio and its account. From the server it takes only the number of a round and a
question.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from airdistill.errors import AirDistillError, InputError
from airdistill.flower.account import AccountError
from airdistill.flower.device import LEARN, Device
from airdistill.flower.endpoint import EndpointError
from airdistill.flower.public_set import PublicSetError
from airdistill.flower.records import Record, RecordError, integer
from airdistill.flower.senders import EmulatedSender, RadioSender, SecureSumSender
from airdistill.flower.sums.device_side import RefusedError
from airdistill.privacy.ledger import BudgetExceeded
from airdistill.runs.folder import locked

logger = logging.getLogger(__name__)
STEPS = (*EmulatedSender.steps, *RadioSender.steps, *SecureSumSender.steps, LEARN)
_LOCK_TIMEOUT_S = 60.0  # for the previous message, which may still be in progress
_REFUSALS = (AccountError, EndpointError, PublicSetError, RefusedError, RecordError, BudgetExceeded)
_FAILED = "failed; the reason is in the device's own log"

Settings = Mapping[str, Any]


def client_app(settings_of: Callable[[Context], Settings]) -> ClientApp:
    """A device; `settings_of` returns its settings `folder`, `device`, `scheme`, `radio`, `data` and
    `account`."""
    app = ClientApp()

    @app.query("who")
    def who(message: Message, context: Context) -> Message:
        with _device(settings_of(context)) as device:
            return _reply(message, {"device": device.number, "terms": device.endpoint.digest})

    def step(name: str) -> Callable[[Message, Context], Message]:
        def answer(message: Message, context: Context) -> Message:
            asked = dict(message.content.config_records["asked"])
            round_index = integer(asked, "round")
            with _device(settings_of(context)) as device:
                answer = device.answer(name, round_index, asked)
            return _reply(message, {**answer, "device": device.number, "round": round_index})

        return answer

    for name in STEPS:
        app.train(name)(step(name))
    return app


def _reply(message: Message, fields: Record) -> Message:
    return Message(RecordDict({"said": ConfigRecord(fields)}), reply_to=message)


@contextmanager
def _device(settings: Settings) -> Iterator[Device]:
    """The device under the lock of its folder: no other message or SuperNode can charge its ledger meanwhile.

    Flower forwards the text of an exception to the server. The text of a refusal is safe. Any other text may reveal
    data, and so the server learns only that the device failed.
    """
    for name in ("folder", "device", "scheme"):
        if name not in settings:
            raise InputError(f"--node-config {name}", "(not given)", "a device needs folder, device and scheme")
    folder = Path(str(settings["folder"]))
    os.umask(0o077)  # only the device can read its files
    try:
        with locked(folder, _LOCK_TIMEOUT_S):
            optional = {name: str(settings.get(name, "")) for name in ("radio", "data", "account")}
            yield Device(folder, int(settings["device"]), str(settings["scheme"]), **optional)
    except _REFUSALS:
        raise
    except Exception as error:
        logger.exception("device %s", settings["device"])
        with (folder / "failures.log").open("a", encoding="utf-8") as file:
            file.write(f"{type(error).__name__}: {error}\n")
        raise AirDistillError(_FAILED) from None


app = client_app(lambda context: context.node_config)
