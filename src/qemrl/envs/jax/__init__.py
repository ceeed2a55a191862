"""Environments written in JAX, which run inside of the compiled loop."""
