"""A device that answers nonsense."""
