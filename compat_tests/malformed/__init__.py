"""Malformed requests of every code, the answers of the official servers to them, and the differences of ours.

`valid_requests.py` has one valid request of each code, `variants.py` damages it in every way, `exchange.py` sends the
result over a raw socket, and `recording.py` compares the answer with `official_answers.json`. `deviations.toml` lists
the variants that our server answers differently, with reasons. The cases are in `compat_tests/cases/test_malformed.py`.
"""
