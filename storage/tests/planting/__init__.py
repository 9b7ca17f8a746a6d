"""Planted defects: each breaks a law of the store in one place, and a test must notice.

`log_defects.py`, `recovery_defects.py`, `timer_defects.py` and `other_defects.py` list them. `planter.py` applies one
to a copy of the tree and runs the tests that should fail there. ``make planted`` does so for all,
``python -m storage.tests.planting NAME…`` for some. `compat_tests/tests/planting` has deviations from the protocol,
which the same planter plants.
"""
