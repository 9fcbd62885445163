"""The same sums by SQL, for rows that DuckDB or Spark reads."""
