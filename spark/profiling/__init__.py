"""What the pipeline `profile` measures, and the page it draws of it."""
