"""Access control, on our server and on the official one."""
