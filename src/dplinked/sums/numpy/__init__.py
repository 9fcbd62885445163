"""Sums by NumPy and a compiled kernel, over tables in memory, Parquet files and streams."""
