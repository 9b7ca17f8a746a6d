"""Side by side benchmark of our server and the official one, with stock clients as the load.

Not responsible for the servers (`compat_tests.endpoints`) nor for correctness (`compat_tests.cases`).
"""
