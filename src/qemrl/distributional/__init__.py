"""Losses and Bellman targets of return distributions, on the device."""
