"""Requests that wait for messages: held pulls and pops, and the signals that wake them. It knows no table."""
