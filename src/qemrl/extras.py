"""How to install what a feature needs, in the words that all messages have in common."""


def how_to_install(extra: str) -> str:
    """The command that installs an extra of this package, as it is installed and as it is in a clone."""
    return f"run: pip install 'qemrl[{extra}]' (in a clone: pip install -e '.[{extra}]')"
