"""Experiments: grids and sweeps of runs, their curves and statistics, comparisons, and episodes step by step."""
