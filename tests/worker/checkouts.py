"""Git, without the user's own settings."""

import subprocess
from pathlib import Path


def git(root: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"]
    return subprocess.run(["git", "-C", root, *identity, *arguments], check=True, capture_output=True, text=True).stdout
