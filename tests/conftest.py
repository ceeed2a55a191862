"""Strictness for all tests: no silent broadcasting, no silent widening, and properties that repeat."""

import hypothesis
import jax

jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")

hypothesis.settings.register_profile("repeatable", derandomize=True, deadline=None, max_examples=60)
hypothesis.settings.load_profile("repeatable")
