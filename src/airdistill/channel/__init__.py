"""The uplink's complex gains: where devices stand, how signals fade, and traces from a file. Draw, not apply."""

from airdistill.channel.propagation import draw_fading, path_gain
from airdistill.channel.sources import ChannelSource, channel_source

__all__ = ["ChannelSource", "channel_source", "draw_fading", "path_gain"]
