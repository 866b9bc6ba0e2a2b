"""A server that has every device double arrays of several types, and writes the replies as lines of JSON."""

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
    log("nodes", ids=nodes)
    for round_number in range(1, settings["rounds"] + 1):
        fail = round_number == settings["fail-round"]
        questions = {node: question(node, round_number, fail) for node in nodes}
        log("round", number=round_number, replies=ask(grid, questions, settings["wait-seconds"]))
        pause(settings["pause-folder"], round_number)
    questions = {node: Message(RecordDict(), node, "query.who") for node in nodes}
    log("devices", replies=ask(grid, questions, settings["wait-seconds"]))


def question(node: int, round_number: int, fail: bool) -> Message:
    arrays = ArrayRecord({name: Array(value) for name, value in ARRAYS.items()})
    content = RecordDict({"arrays": arrays, "question": ConfigRecord({"fail": fail})})
    return Message(content, node, "train.double", group_id=str(round_number), ttl=600.0)


def ask(grid: Grid, questions: dict[int, Message], wait_seconds: float) -> dict[int, dict]:
    """The summaries of the replies, by node.

    Like `grid.send_and_receive`, with a shorter polling interval than three seconds. Flower's error messages name the
    SuperLink as their sender, and so the node is found by the question.
    """
    waiting = dict(zip(grid.push_messages(list(questions.values())), questions, strict=True))
    deadline, replies = time.monotonic() + wait_seconds, {}
    while waiting and time.monotonic() < deadline:
        for reply in list(grid.pull_messages(list(waiting))):
            replies[waiting.pop(reply.metadata.reply_to_message_id)] = summary(reply)
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
    """Wait between two rounds until the test allows the next one, if it asked for that."""
    if not folder:
        return
    (Path(folder) / f"after-{round_number}").touch()
    while not (Path(folder) / f"continue-{round_number}").exists():
        time.sleep(0.2)


def log(what: str, **facts: object) -> None:
    sys.stdout.write("LOG " + json.dumps({"what": what, **facts}) + "\n")
