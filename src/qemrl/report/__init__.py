"""A page about all runs below a folder, and the figures of it for papers."""
