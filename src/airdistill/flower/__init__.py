"""AirDistill on a Flower federation: real devices, a real server, and nothing that a simulation would share."""
