"""Tools for a store's files at rest or under a running broker: summary, check, export, repair and backup.

`store_reader.py` opens any store folder for reading only; every other module builds on it. The commands that call these
modules and print their results are in `gateway/commands/store`.
"""
