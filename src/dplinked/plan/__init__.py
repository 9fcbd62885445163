"""What a budget would buy, from public values only. No data is touched."""
