"""Gymnasium, Atari and MuJoCo behind one adapter."""
