"""The same sums by SQL, where the rows are in DuckDB or Spark."""
