"""Planted deviations from the protocol: each makes our server differ in one place, and a case must turn red.

`deviations.py` lists them with the case that must fail. The planter of `storage/tests/planting` applies one to a copy
of the tree and runs that case against the server of the copy. ``make planted-deviations`` does so for all,
``python -m compat_tests.tests.planting NAME…`` for some.
"""
