"""The commands `rmq-gateway shadow`, `capture` and `replay`."""
