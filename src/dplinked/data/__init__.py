"""Where rows are and how they are read: files, tables, streams, and the keys in them."""
