"""Cases about our own processes: start and stop, several brokers, full disks, access control, the shadow gateway.

They start our servers, some an official broker beside them, and cannot run against another endpoint; cases that can are
in `compat_tests/cases`. `pytest acceptance` runs them.
"""
