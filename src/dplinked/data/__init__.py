"""Where rows are and how they are read: files, tables and streams, and the keys in their columns."""
