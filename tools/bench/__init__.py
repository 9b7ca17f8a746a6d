"""Benchmarks with stock clients as the load: our server beside the official one, and the shadow gateway's cost.

- `python -m tools.bench` compares two servers (`cli`, `loads`, `report`).
- `python -m tools.bench.shadow` measures the shadow gateway in front of an official broker.
- `python -m tools.bench.isolation` measures how much a mirror costs the primary's clients.
"""
