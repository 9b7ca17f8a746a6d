"""Measurements of the pipeline `profile`, and the HTML page about them."""
