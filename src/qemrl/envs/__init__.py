"""Environments: Gymnasium's on the host, and pure JAX ones for the compiled loop."""
