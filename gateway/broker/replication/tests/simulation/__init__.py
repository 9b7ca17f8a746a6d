"""A master, its slave and their clients in one process on virtual time, with faults that a seed decides.

Theory of operation
-------------------
`story.py` runs one seed: real stores on files that can be crashed (`storage.crash_files`), the real `AnswerGate`,
`GroupCommit`, `InSyncRule`, `HaServer` and `Follower` (`brokers.py`), on trio's mock clock and a network with delays
and partitions (`network.py`). Producers and consumers (`clients.py`) do what stock clients do. An operator
(`operator.py`) kills, cuts the power, partitions, slows disks down, moves clocks, restarts, promotes and switches over.

Everything random comes from the seed, including trio's order of tasks, so that a failing seed replays exactly. The
`History` judges what clients saw:

- an acknowledged message is readable, at its queue offset, after any single fault that its mode promises to survive;
- what is read was sent, and to that queue; messages of one producer keep their order; only a message that was sent
  again is there twice;
- a slave's log is a prefix of its master's, and after all faults have healed the slave catches up and sends succeed.

The operator knows the promise of each mode and keeps to it: a slave is promoted only if it has all that was
acknowledged, and no second replica loses its power before the first has caught up. `python -m
gateway.broker.replication.tests.simulation --seeds 10000` runs many seeds, `--seed 7 --trace` shows one.
"""
