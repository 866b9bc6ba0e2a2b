"""The server as Flower calls it: messages around `coordinator`, and nothing else."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.serverapp import Grid, ServerApp

from airdistill.arrays import ComplexArray, FloatArray
from airdistill.errors import InputError
from airdistill.flower.coordinator import Coordinator, Introduction, Told
from airdistill.flower.station import StationError
from airdistill.runs.folder import locked

Answer = TypeVar("Answer")
POLL_S = 0.1  # Flower's own `send_and_receive` looks every three seconds

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    settings = context.run_config
    folder = Path(str(settings["folder"]))
    if not str(settings["folder"]) or not folder.is_dir():
        rule = "must be the server's own folder with its scenario.toml: flwr run --run-config 'folder=\"…\"'"
        raise InputError("folder", str(settings["folder"]), rule)
    with locked(folder):
        devices = GridDevices(grid, float(settings["wait-seconds"]))
        Coordinator(folder, str(settings["scheme"]), devices, int(settings["eval-every"])).play()


class GridDevices:
    """The devices behind a grid, each known by the number that its authenticated node gave when it came."""

    def __init__(self, grid: Grid, wait_s: float) -> None:
        self._grid, self._wait_s = grid, wait_s
        self._nodes: dict[int, int] = {}

    def introductions(self, num_devices: int) -> list[Introduction]:
        deadline = time.monotonic() + self._wait_s
        while len(nodes := sorted(self._grid.get_node_ids())) < num_devices and time.monotonic() < deadline:
            time.sleep(POLL_S)
        replies = self._ask({node: Message(RecordDict(), node, "query.who", ttl=self._wait_s) for node in nodes})
        known = []
        for node, reply in replies.items():
            if reply.has_error():
                raise StationError(f"a device does not come: {reply.error.reason}")
            known.append(_introduction_in(reply.content))
            self._nodes[known[-1].device] = node
        return known

    def signals(self, round_index: int) -> Mapping[int, ComplexArray | str]:
        return self._answers("signal", round_index, {}, RecordDict(), _signal_in)

    def lessons(self, round_index: int, broadcast: FloatArray | None, evaluate: bool) -> Mapping[int, Told | str]:
        content = RecordDict()
        if broadcast is not None:
            content["heard"] = ArrayRecord({"broadcast": Array(broadcast)})
        return self._answers("learn", round_index, {"evaluate": evaluate}, content, _lesson_in)

    def _answers(
        self,
        what: str,
        round_index: int,
        asked: Mapping[str, bool],
        content: RecordDict,
        read: Callable[[RecordDict], Answer],
    ) -> dict[int, Answer | str]:
        """Every device's, read; or why it has none that counts."""
        content["asked"] = ConfigRecord({"round": round_index, **asked})
        messages = {
            node: Message(content, node, f"train.{what}", ttl=self._wait_s, group_id=str(round_index))
            for node in self._nodes.values()
        }
        replies = self._ask(messages)
        answers: dict[int, Answer | str] = {}
        for device, node in self._nodes.items():
            reply = replies.get(node)
            if reply is None:
                answers[device] = "no answer in time"
            elif reply.has_error():
                answers[device] = f"failed: {reply.error.reason}"
            else:
                answers[device] = _read(reply.content, device, round_index, read)
        return answers

    def _ask(self, messages: Mapping[int, Message]) -> dict[int, Message]:
        """By node, of those that come in time."""
        waiting = set(self._grid.push_messages(list(messages.values())))
        deadline = time.monotonic() + self._wait_s
        replies: dict[int, Message] = {}
        while waiting and time.monotonic() < deadline:
            came: Sequence[Message] = list(self._grid.pull_messages(waiting))
            waiting -= {reply.metadata.reply_to_message_id for reply in came}
            replies |= {reply.metadata.src_node_id: reply for reply in came}
            time.sleep(POLL_S)
        return {node: reply for node, reply in replies.items() if node in messages}


def _read(content: RecordDict, device: int, round_index: int, read: Callable[[RecordDict], Answer]) -> Answer | str:
    """What a device says may be anything: what cannot be read is its own loss, and is told."""
    try:
        said = content.config_records["said"]
        if (said["device"], said["round"]) != (device, round_index):
            return f"answered as device {said['device']!r} in round {said['round']!r}"
        return read(content)
    except (KeyError, TypeError, ValueError) as error:
        return f"sent what cannot be read: {type(error).__name__}: {error}"


def _signal_in(content: RecordDict) -> ComplexArray:
    return content.array_records["sent"]["signal"].numpy()


def _lesson_in(content: RecordDict) -> Told:
    said = content.config_records["said"]
    return {name: float(str(value)) for name, value in said.items() if name not in ("device", "round")}


def _introduction_in(content: RecordDict) -> Introduction:
    said = content.config_records.get("said", ConfigRecord())
    device, terms, last_round = (said.get(name) for name in ("device", "terms", "last_round"))
    if not (isinstance(device, int) and isinstance(terms, str) and isinstance(last_round, int)):
        raise StationError("a device did not say its number, its terms and its last round when it was asked who it is")
    return Introduction(device, terms, last_round)
