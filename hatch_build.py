"""Compile kernel.c on the way into a wheel. Without a C compiler the package is built without it, and NumPy does its work."""

from __future__ import annotations

import os
import shutil
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

FLAGS = ("-O3", "-fopenmp-simd", "-ffp-contract=off", "-fPIC", "-shared")


class KernelHook(BuildHookInterface):
    """Builds ``libkernel`` beside its source."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, and mark the wheel as one for this kind of machine."""
        source = Path(self.root, "src", "dplinked", "sums", "kernel.c")
        target = source.with_name(f"libkernel{sysconfig.get_config_var('SHLIB_SUFFIX') or '.so'}")
        compiler = next(filter(shutil.which, (os.environ.get("CC", "cc"), "gcc", "clang")), None)
        command = [compiler or "cc", *FLAGS, str(source), "-o", str(target), "-lm"]
        if compiler is None or subprocess.run(command, check=False).returncode:
            self.app.display_warning("kernel.c could not be compiled: sums of large files will be slower.")
            target.unlink(missing_ok=True)
            return
        build_data["artifacts"].append(str(target.relative_to(self.root)))
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"
