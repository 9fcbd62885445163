"""The worked example of files that may not be shared: three places, and what crosses between them. See benchmarks/three_folders.py."""

from __future__ import annotations

from pathlib import Path

import pytest

import dplinked as dpl
from dplinked.simulate import two_files


def test_the_page_goes_through_and_no_identifier_crosses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor the key, nor a block key that is hashed without it. What is put there is found, so that what was looked through is what was sent."""
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "benchmarks")
    import three_folders as example

    files = two_files(1_500, seed=3, errors=1.5)
    places = example.walk(tmp_path, files)
    low, high = dpl.Release.load(places.analysis / "release.json").conf_int(1 - 1e-7)["income"]
    assert low < example.SLOPE < high

    key = (places.hospital / "secret.key").read_bytes()
    hidden = example.secrets_of(files, key)
    assert {"address", "surname", "date_of_birth", "the key"} <= set(hidden.values())
    assert any(what.startswith("block key postcode and date_of_birth:year, hashed") for what in hidden.values())
    assert example.find_secrets(places, hidden) == []
    example.plant(places, files, key)
    found = "\n".join(example.find_secrets(places, hidden))
    for planted in ("analysis/more.parquet: address, inside", "unit/plain.clk: block key", "unit/notes.txt: the key"):
        assert planted in found
