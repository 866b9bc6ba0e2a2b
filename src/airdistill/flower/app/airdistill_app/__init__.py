"""The app that a SuperLink distributes: it only refers to the ServerApp and ClientApp of airdistill."""
