"""How fast the engines are, against the loop that everybody writes and against the machine."""
