"""A real local Spark session for tests, and when they can have one."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from collections.abc import Iterator
from typing import Any

import pytest

MARKS = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("java") is None, reason="Spark needs Java 17, which is not installed"),
    pytest.mark.skipif(importlib.util.find_spec("pyspark") is None, reason="PySpark is not installed"),
    pytest.mark.filterwarnings("ignore"),  # PySpark's own
]


def local_session() -> Iterator[Any]:
    """A session on two cores, stopped when its users are done; the fixture `session` is made of it."""
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.sql.shuffle.partitions", "2").config("spark.driver.host", "127.0.0.1")
    session = builder.config("spark.driver.bindAddress", "127.0.0.1").getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()
