"""What is published: the package's README, and an image where Docker builds one."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def build() -> ModuleType:
    pytest.importorskip("hatchling", reason="hatchling is only there while the package is built")
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_links_of_the_readme_lead_somewhere_on_an_index_page(build: ModuleType) -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert re.search(r"\]\(docs/", text)
    assert not re.search(r"\]\((?!https?:|#)", build.outside_links(text, None))
    led = build.outside_links(text, "https://example.org/dplinked/")
    assert "(https://example.org/dplinked/blob/main/docs/linking.md)" in led
    assert not re.search(r"\]\((?!https?:|#)", led)


@pytest.mark.slow
def test_the_image_is_built(tmp_path: Path) -> None:
    docker = shutil.which("docker")
    if docker is None or subprocess.run([docker, "info"], capture_output=True, check=False).returncode:
        pytest.skip("an image is built where a Docker engine runs")
    subprocess.run([docker, "build", "--tag", "dplinked-test", str(ROOT)], check=True)
    done = subprocess.run(
        [docker, "run", "--rm", "dplinked-test", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("dplinked ")


def test_python_without_assertions_is_refused() -> None:
    """A sensitivity whose conditions are not asserted may not hold."""
    done = subprocess.run([sys.executable, "-O", "-c", "import dplinked"], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "Run it without them." in done.stderr
