"""Topics: their table and attributes, names and their validation, and the pages in which tables are answered."""
