"""What building the package takes: kernel.c is compiled, the documentation's pages come along, and README's links are made to work outside of the repository.

Without a C compiler the package is built without the kernel, and NumPy does its work.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
import sysconfig
import zlib
from contextlib import suppress
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

FLAGS = ("-O3", "-fopenmp-simd", "-ffp-contract=off", "-fno-math-errno", "-fPIC", "-shared")


class ReadmeHook(MetadataHookInterface):
    """README as package indexes show it."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Lead its links to the project's repository if that has an address (``[project.urls] Repository``); else only their words stay."""
        text = Path(self.root, "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {
            "content-type": "text/markdown",
            "text": outside_links(text, metadata.get("urls", {}).get("Repository")),
        }


def outside_links(text: str, repository: str | None) -> str:
    """Markdown whose links to files of the repository work elsewhere."""
    kept = "" if repository is None else rf"[\1]({repository.rstrip('/')}/blob/main/\2)"
    return re.sub(r"\[([^\]]+)\]\((?!https?:|#)([^)]+)\)", kept or r"\1", text)


def documentation(root: Path) -> dict[str, str]:
    """The documentation's pages, which the studio serves, by where they are, with their places in the wheel."""
    return {str(page): f"dplinked/documentation/{page.name}" for page in sorted(root.glob("docs/*.md"))}


class PackageHook(BuildHookInterface):
    """Builds ``libkernel`` beside its source, and takes the documentation along."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, and mark the wheel as one for this kind of machine."""
        build_data["force_include"].update(documentation(Path(self.root)))
        source = Path(self.root, "src", "dplinked", "sums", "numpy", "kernel.c")
        target = source.with_name(f"libkernel{sysconfig.get_config_var('SHLIB_SUFFIX') or '.so'}")
        compilers = filter(shutil.which, dict.fromkeys([os.environ.get("CC", "cc"), "cc", "gcc", "clang"]))
        if not any(compiled(compiler, source, target) for compiler in compilers):
            self.app.display_warning("kernel.c could not be compiled: sums of large files will be slower.")
            with suppress(OSError):
                target.unlink(missing_ok=True)
            return
        build_data["artifacts"].append(str(target.relative_to(self.root)))
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"


def compiled(compiler: str, source: Path, target: Path) -> bool:
    """Whether a compiler makes a library that loads; it takes its place only then."""
    made = target.with_name(f"{target.stem}-{os.getpid()}{target.suffix}")
    mark = f"-DSOURCE={zlib.crc32(source.read_bytes())}u"
    try:
        subprocess.run([compiler, *FLAGS, mark, str(source), "-o", str(made), "-lm"], check=True)
        ctypes.CDLL(str(made))
        os.replace(made, target)
    except (OSError, subprocess.CalledProcessError):
        return False
    finally:
        with suppress(OSError):
            made.unlink(missing_ok=True)
    return True
