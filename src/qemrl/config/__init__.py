"""Settings: how they are stored, overridden and named."""
