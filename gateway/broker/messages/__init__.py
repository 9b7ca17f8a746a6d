"""Messages on their way into the store and out of it: writing, group commit, reading, damaged records, the index."""
