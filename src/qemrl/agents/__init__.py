"""Agents: records of pure functions, made from configurations; and the presets that name them."""
