"""Refusing and delaying requests under load: flow control, quotas, and the farewell of a stopping broker."""
