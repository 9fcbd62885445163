"""Sums over tables and Parquet files, by NumPy and a small compiled kernel."""
