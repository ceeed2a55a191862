"""Which code made a result."""

import subprocess
from pathlib import Path


def code_commit() -> str | None:
    """The commit of the code that runs, marked if files differ from it; None outside a checkout."""
    return file_commit(Path(__file__).parent / "__init__.py")


def file_commit(file: Path) -> str | None:
    """The commit of a file, marked if files of its folder differ; None if Git does not have it."""

    def git(*words: str) -> str | None:
        call = ["git", "-C", str(file.parent), *words]
        try:
            result = subprocess.run(call, capture_output=True, text=True, check=False, timeout=10)
        except (OSError, subprocess.TimeoutExpired):
            return None
        return result.stdout.strip() if result.returncode == 0 else None

    # A package that is installed below somebody's repository has nothing to do with that repository's commit.
    if git("ls-files", "--error-unmatch", "--", file.name) is None:
        return None
    commit = git("rev-parse", "HEAD")
    # New files count when a file that Git keeps uses them, and so differs.
    changed = git("status", "--porcelain", "--untracked-files=no", "--", ".")
    return f"{commit} with changes" if commit and changed else commit


def shortened(commit: str, digits: int) -> str:
    """The first digits of a commit, and the mark behind it if there is one."""
    return f"{commit[:digits]}{commit[40:]}"
