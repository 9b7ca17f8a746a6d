"""`python -m compat_tests.bench`.

Not responsible for anything but starting `cli`.
"""

from compat_tests.bench.cli import main

main()
