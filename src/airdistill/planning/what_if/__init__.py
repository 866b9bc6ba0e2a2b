"""What other choices would change: receivers, steps, antennas, public sets, participation."""
