"""Transactional messages: ending half messages, and asking producers about those that stay open."""
