"""Complex uplink gains: path loss, fading, 3GPP channels, recorded traces, and CSI errors."""

from airdistill.channel.link_budget import path_gain
from airdistill.channel.sources import ChannelSource, channel_source, draw_fading

__all__ = ["ChannelSource", "channel_source", "draw_fading", "path_gain"]
