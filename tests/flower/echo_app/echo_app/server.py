"""Asks who is there, then has every device double arrays of several kinds, and writes what it saw as lines of JSON."""

import json
import sys
import time
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.serverapp import Grid, ServerApp

app = ServerApp()
ARRAYS = {
    "float64": np.linspace(-1, 1, 5),
    "complex128": np.array([[1 + 2j, -3j]]),
    "int64": np.array([2**61, -(2**61)]),
    "uint64": np.array([2**62], dtype=np.uint64),
    "uint8": np.arange(4, dtype=np.uint8),
}


@app.main()
def main(grid: Grid, context: Context) -> None:
    settings = context.run_config
    nodes = sorted(grid.get_node_ids())
    tell("nodes", ids=nodes)
    for round_number in range(1, settings["rounds"] + 1):
        began = time.monotonic()
        replies = ask(
            grid,
            [question(node, round_number, round_number == settings["fail-round"]) for node in nodes],
            settings["wait-seconds"],
        )
        heard = {reply.metadata.src_node_id: summary(reply) for reply in replies}
        tell("round", number=round_number, heard=heard, seconds=time.monotonic() - began)
        pause(settings["pause-folder"], round_number)
    replies = ask(grid, [Message(RecordDict(), node, "query.who") for node in nodes], settings["wait-seconds"])
    tell("devices", heard={reply.metadata.src_node_id: summary(reply) for reply in replies})


def question(node: int, round_number: int, fail: bool) -> Message:
    arrays = ArrayRecord({name: Array(value) for name, value in ARRAYS.items()})
    content = RecordDict({"arrays": arrays, "question": ConfigRecord({"fail": fail})})
    return Message(content, node, "train.double", group_id=str(round_number), ttl=60.0)


def ask(grid: Grid, messages: list[Message], wait_seconds: float) -> list[Message]:
    """Like `grid.send_and_receive`, which looks for replies every three seconds, but impatient."""
    waiting = set(grid.push_messages(messages))
    deadline, replies = time.monotonic() + wait_seconds, []
    while waiting and time.monotonic() < deadline:
        came = list(grid.pull_messages(waiting))
        waiting -= {reply.metadata.reply_to_message_id for reply in came}
        replies += came
        time.sleep(0.2)
    return replies


def summary(reply: Message) -> dict:
    if reply.has_error():
        return {"error": reply.error.code, "reason": reply.error.reason}
    said = dict(reply.content["said"])
    if "arrays" in reply.content:
        arrays = {name: array.numpy() for name, array in reply.content["arrays"].items()}
        said["exact"] = all(
            arrays[name].dtype == value.dtype and np.array_equal(arrays[name], value * 2)
            for name, value in ARRAYS.items()
        )
    return said


def pause(folder: str, round_number: int) -> None:
    """Where a test wants to do something between two rounds, it says when to go on."""
    if not folder:
        return
    (Path(folder) / f"after-{round_number}").touch()
    while not (Path(folder) / f"go-on-{round_number}").exists():
        time.sleep(0.2)


def tell(what: str, **facts: object) -> None:
    sys.stdout.write("TELL " + json.dumps({"what": what, **facts}) + "\n")
