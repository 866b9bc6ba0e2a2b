"""AirDistill's apps with devices that send invalid signals or stop at fixed points of a run."""
