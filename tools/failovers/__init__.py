"""Groups of three brokers under controllers, as real processes, through faults: `make failovers`.

Brokers of every kind (official, ours, both) run under every kind of controllers (three official ones, one of ours with
a file, three of ours with etcd), each on a machine of its own: a network namespace (`network.py`). While clients send
and read (`traffic.py`), a fault happens (`faults.py`); a round ends when every replica is in sync again (`rounds.py`).
A history judges what was acknowledged, and the times without an accepted send are measured.
"""
