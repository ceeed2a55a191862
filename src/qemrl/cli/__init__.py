"""The command line."""

from qemrl.cli.app import main

__all__ = ["main"]
