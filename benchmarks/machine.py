"""What a result was measured with: versions and machine."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path


def describe_machine(*packages: str, beside: Sequence[str] = ()) -> str:
    """Python, the packages' versions, what else counts `beside` them, and the machine, in one line."""
    model = platform.processor() or platform.machine()
    cpu = Path("/proc/cpuinfo")
    if cpu.exists():
        model = next(
            (line.split(":")[1].strip() for line in cpu.read_text().splitlines() if "model name" in line), model
        )
    versions = ", ".join([*(f"{name} {metadata.version(name)}" for name in packages), *beside])
    return f"Python {platform.python_version()}, {versions}; {model}, {os.cpu_count()} cores, {platform.system()}"
