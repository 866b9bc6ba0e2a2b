"""What a SuperLink ships: the names of two apps, and no code of its own."""
