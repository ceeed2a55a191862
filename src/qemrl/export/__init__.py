"""Trained agents as programs that need no qemrl, in a folder that the Hugging Face hub can show."""

from qemrl.export.directory import Exported, export_agent
from qemrl.export.program import ExportError

__all__ = ["ExportError", "Exported", "export_agent"]
