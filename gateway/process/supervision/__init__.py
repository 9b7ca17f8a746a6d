"""Broker processes: one supervisor starts each broker as a process of its own, watches it and starts it again.

Theory of operation
-------------------
The problem: a broker runs on one event loop and so uses one core. RocketMQ uses more cores by more brokers, and here
each of them gets a process, while clients see one namesrv and operators one server.

The supervisor runs the namesrv and the HTTP port. It starts every broker with a *control channel*, a socket pair that
the process inherits (`broker_process.py`). Over it both sides send remoting requests: the broker registers as with any
namesrv (`gateway.namesrv.child_broker` says why it counts as local) and reports that it listens; the supervisor asks
for its state and tells it to stop (`supervisor_link.py`). What a broker process logs goes through a pipe to the
supervisor, the only writer of standard error (`LogLines`).

Invariants:

1. A broker process never outlives its supervisor. On Linux the kernel kills it (PR_SET_PDEATHSIG); elsewhere it stops
   at once and cleanly when the control channel ends.
2. The supervisor never ends before its broker processes: it asks them to stop, and kills those that do not.
3. A broker that ends is started again on the same port with back-off, unless it never listened, which is an error in
   the configuration or on the machine and ends the server (`restart_policy.py` decides, `broker_processes.py` does).

Processes are started afresh, not forked: an event loop with threads cannot be forked safely, and a fork server would be
one more process that can fail. It costs 0.3 s of processor time at each start and 18 MiB of memory for each broker.
"""
