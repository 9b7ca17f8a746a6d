"""Configuration: every key declared once, read from files, environment and flags."""
