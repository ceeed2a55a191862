"""Training: what a run is, the two loops that run it, and its directory with metrics and checkpoints."""
