"""A GNU Radio flow graph in which devices' samples go through GNU Radio's own channel blocks and are added up.

`radio.gnu_radio` runs this file with the Python that has GNU Radio, which need not be AirDistill's: nothing else of
AirDistill is imported here. The description comes in as one line of JSON on standard input; the address of the output
goes out as one line on standard output. The flow graph ends when standard input does: also if its parent was killed.

    ZeroMQ PULL (all devices' samples, as vectors) -> a channel block for each device -> sum -> receiver noise
        -> ZeroMQ PUSH (vectors: each device's channel output without noise, and last the sum)
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from gnuradio import analog, blocks, channels, gr, zeromq

_WAIT_MS = 10


def channel_of(described: dict[str, Any], device: int) -> Any:
    """The channel block of one device: its `kind` names a class of `gnuradio.channels`."""
    kind, each = described["kind"], described["devices"][device]
    if kind == "channel_model":
        taps = [complex(real, imaginary) for real, imaginary in each["taps"]]
        return channels.channel_model(0.0, each["offset"], 1.0, taps, 0)
    fading = (described["sinusoids"], described["doppler"], described["line_of_sight"], described["rician_k"])
    if kind == "fading_model":
        return channels.fading_model(*fading, each["seed"])
    return channels.selective_fading_model(*fading, each["seed"], each["delays"], each["magnitudes"], described["taps"])


def flow_graph(described: dict[str, Any]) -> tuple[gr.top_block, Any]:
    """The connected flow graph and its last block."""
    num_devices, size = len(described["devices"]), gr.sizeof_gr_complex
    graph = gr.top_block()
    source = zeromq.pull_source(size, num_devices, described["source"], _WAIT_MS)
    apart, add = blocks.vector_to_streams(size, num_devices), blocks.add_cc()
    together = blocks.streams_to_vector(size, num_devices + 1)
    sink = zeromq.push_sink(size, num_devices + 1, "tcp://127.0.0.1:*", _WAIT_MS)
    graph.connect(source, apart)
    for device in range(num_devices):
        channel = channel_of(described, device)
        # Fading in proportion to the link's amplitude: the blocks have a mean gain of 1.
        scaled = blocks.multiply_const_cc(described["devices"][device].get("amplitude", 1.0))
        graph.connect((apart, device), channel, scaled, (add, device))
        graph.connect(scaled, (together, device))
    # channel_model's own noise repeats after 8,192 samples.
    noise, receiver = (
        analog.noise_source_c(analog.GR_GAUSSIAN, described["noise"], described["noise_seed"]),
        blocks.add_cc(),
    )
    graph.connect(add, (receiver, 0))
    graph.connect(noise, (receiver, 1))
    graph.connect(receiver, (together, num_devices))
    graph.connect(together, sink)
    return graph, sink


def main() -> None:
    described = json.loads(sys.stdin.readline())
    graph, sink = flow_graph(described)
    graph.start()
    sys.stdout.write(json.dumps({"sink": sink.last_endpoint(), "gnuradio": gr.version()}) + "\n")
    sys.stdout.flush()
    while sys.stdin.readline():
        pass
    os._exit(0)  # blocks that wait for samples would keep `stop` waiting


if __name__ == "__main__":
    main()
