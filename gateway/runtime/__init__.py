"""Process-level building blocks shared by all servers: supervised tasks, metrics, logging, small state files."""
