"""Figures: one style, and one place for curves and distributions."""
