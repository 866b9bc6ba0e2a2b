"""AirDistill on a Flower federation: devices and a server in separate processes with separate folders."""
