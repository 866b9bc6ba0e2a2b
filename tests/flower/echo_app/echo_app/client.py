"""A device that identifies itself, counts in its folder how often it was asked, and returns doubled arrays."""

import os
from pathlib import Path

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


@app.query("who")
def who(message: Message, context: Context) -> Message:
    said = ConfigRecord({"device": context.node_config["partition-id"], "process": os.getpid()})
    return Message(RecordDict({"said": said}), reply_to=message)


@app.train("double")
def double(message: Message, context: Context) -> Message:
    counter = Path(str(context.node_config["folder"])) / "asked"
    asked = int(counter.read_text()) + 1 if counter.exists() else 1
    counter.write_text(str(asked))
    in_memory = context.state.config_records.setdefault("asked", ConfigRecord({"times": 0}))
    in_memory["times"] += 1
    if message.content["question"]["fail"]:
        raise ValueError("asked to fail")
    arrays = {name: array.numpy() for name, array in message.content["arrays"].items()}
    doubled = ArrayRecord({name: type(message.content["arrays"][name])(value * 2) for name, value in arrays.items()})
    said = ConfigRecord({"asked": asked, "in_memory": in_memory["times"]})
    return Message(RecordDict({"arrays": doubled, "said": said}), reply_to=message)
