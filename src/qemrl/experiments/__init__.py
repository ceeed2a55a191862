"""What is done with agents: episodes looked at closely, presets compared, and the figures of both."""
