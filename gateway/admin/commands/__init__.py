"""The command line of `gateway.admin`: each module is imported only when its command runs."""
