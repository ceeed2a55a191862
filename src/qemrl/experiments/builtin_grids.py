"""The grids that come with the library."""

from importlib import resources


def builtin_grids() -> dict[str, str]:
    """The text of each grid, by name."""
    folder = resources.files("qemrl.experiments") / "grids"
    files = sorted((file for file in folder.iterdir() if file.name.endswith(".toml")), key=lambda file: file.name)
    return {file.name.removesuffix(".toml"): file.read_text(encoding="utf-8") for file in files}


def summary(text: str) -> str:
    """What a grid is, from the comment in its first line."""
    return text.splitlines()[0].removeprefix("#").strip()
