"""The ServerApp: Flower's messages for `coordinator`, without any logic of the scheme."""

from __future__ import annotations

import time
from collections.abc import Mapping, Set
from pathlib import Path

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid, ServerApp

from airdistill.errors import InputError
from airdistill.flower.coordinator import Coordinator, Introduction
from airdistill.flower.media import NO_ANSWER
from airdistill.flower.records import Record
from airdistill.runs.folder import locked

POLLING_INTERVAL_S = 0.1  # Flower's own `send_and_receive` polls every three seconds
START_S = 120.0  # for devices to join; after a server was killed Flower may keep them busy for a minute
GRACE_S = 2.0  # for devices that did not reply last time, after the other devices have replied
_LOCK_TIMEOUT_S = 30.0  # for a server that was just killed
_GONE = (ErrorCode.MESSAGE_UNAVAILABLE, ErrorCode.REPLY_MESSAGE_UNAVAILABLE, ErrorCode.NODE_UNAVAILABLE)

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    settings = context.run_config
    folder = Path(str(settings["folder"]))
    if not str(settings["folder"]) or not folder.is_dir():
        rule = "must be the server's own folder with its scenario.toml: flwr run --run-config 'folder=\"…\"'"
        raise InputError("folder", str(settings["folder"]), rule)
    with locked(folder, _LOCK_TIMEOUT_S):
        devices = GridDevices(grid, float(settings["wait-seconds"]))
        scheme, eval_every = str(settings["scheme"]), int(settings["eval-every"])
        radio, account = str(settings["radio"]), str(settings.get("account", ""))
        Coordinator(folder, scheme, devices, eval_every, radio, account).play()


class GridDevices:
    """The devices behind a grid, each identified by the number that its authenticated node gave when it joined."""

    def __init__(self, grid: Grid, wait_s: float) -> None:
        self._grid, self._wait_s = grid, wait_s
        self._nodes: dict[int, int] = {}
        self._asked_who: dict[str, int] = {}  # nodes that have not identified themselves yet, by message
        self._seen: set[int] = set()
        self._invalid: set[int] = set()  # nodes with an invalid introduction, which are asked again later
        self._unresponsive: set[int] = set()  # nodes that did not reply the last time

    def introductions(self, expected: Set[int]) -> list[Introduction | str]:
        deadline = time.monotonic() + max(self._wait_s, START_S)
        known = self._poll_introductions()
        while not expected <= self._nodes.keys() and time.monotonic() < deadline:
            time.sleep(POLLING_INTERVAL_S)
            known += self._poll_introductions()
        return known

    def newcomers(self) -> list[Introduction | str]:
        self._seen -= self._invalid
        self._invalid = set()
        return self._poll_introductions()

    def _poll_introductions(self) -> list[Introduction | str]:
        """Ask new nodes to identify themselves, and return the introductions that have arrived."""
        new = sorted(set(self._grid.get_node_ids()) - self._seen)
        messages = [Message(RecordDict(), node, "query.who", ttl=max(self._wait_s, START_S)) for node in new]
        self._asked_who |= dict(zip(self._grid.push_messages(messages), new, strict=True))
        self._seen |= set(new)
        known = []
        for reply in list(self._grid.pull_messages(list(self._asked_who))) if self._asked_who else []:
            node = self._asked_who.pop(reply.metadata.reply_to_message_id)
            if _is_gone(reply):
                self._seen.discard(node)
                continue
            known.append(_introduction_in(reply))
            if isinstance(known[-1], Introduction):
                self._nodes.setdefault(known[-1].device, node)
            else:
                self._invalid.add(node)
        return known

    def ask(self, step: str, round_index: int, questions: Mapping[int, Record]) -> dict[int, Record | str]:
        messages = {}
        for device, question in questions.items():
            content = RecordDict({"asked": ConfigRecord({**question, "round": round_index})})
            node = self._nodes[device]
            messages[node] = Message(content, node, f"train.{step}", ttl=self._wait_s, group_id=str(round_index))
        replies = self._ask(messages)
        return {device: _answer_in(replies.get(self._nodes[device]), device, round_index) for device in questions}

    def _ask(self, messages: Mapping[int, Message]) -> dict[int, Message]:
        """The replies that arrive in time, by node.

        A node that did not reply last time gets twice the time that the other nodes took, and a grace period: a device
        that is gone must not delay every round by the full timeout.
        """
        waiting = dict(zip(self._grid.push_messages(list(messages.values())), messages, strict=True))
        began, others_took_s, others = time.monotonic(), 0.0, set(messages) - self._unresponsive
        deadline = began + self._wait_s
        replies: dict[int, Message] = {}
        while waiting and time.monotonic() < deadline:
            for reply in list(self._grid.pull_messages(list(waiting))):
                node = waiting.pop(reply.metadata.reply_to_message_id)
                if not _is_gone(reply):
                    replies[node] = reply
            if not set(waiting.values()) <= self._unresponsive:
                others_took_s = time.monotonic() - began
            elif others:
                deadline = began + min(self._wait_s, 2 * others_took_s + GRACE_S)
            time.sleep(POLLING_INTERVAL_S)
        self._unresponsive = (self._unresponsive - set(replies)) | (set(messages) - set(replies))
        return replies


def _is_gone(reply: Message) -> bool:
    """Whether the reply is Flower's error message for a device that is not connected."""
    return reply.has_error() and reply.error.code in _GONE


def _answer_in(reply: Message | None, device: int, round_index: int) -> Record | str:
    """The reply of a device, or the reason why it is not valid; a device may send anything."""
    if reply is None:
        return NO_ANSWER
    if reply.has_error():
        return f"failed: {reply.error.reason}"
    fields = reply.content.config_records.get("said", ConfigRecord())
    if (fields.get("device"), fields.get("round")) != (device, round_index):
        return f"replied as device {fields.get('device')!r} in round {fields.get('round')!r}"
    return dict(fields)


def _introduction_in(reply: Message) -> Introduction | str:
    if reply.has_error():
        return f"failed: {reply.error.reason}"
    fields = reply.content.config_records.get("said", ConfigRecord())
    device, terms = fields.get("device"), fields.get("terms")
    if not (isinstance(device, int) and isinstance(terms, str)):
        return "a device did not send its number and its terms when it was asked to identify itself"
    return Introduction(device, terms)
