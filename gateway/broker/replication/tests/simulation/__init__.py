"""A master, its slaves and their clients in one process on virtual time, with faults that a seed decides.

Theory of operation
-------------------
`story.py` runs one seed: whole brokers, each a `BrokerService` on files that can be crashed (`storage.crash_files`,
`brokers.py`), on trio's mock clock and a network with delays and partitions (`network.py`). Slaves copy the log and ask
for tables over that network; clients call the handlers of a broker. Producers, consumers and an administrator
(`clients.py`) do what stock clients do. An operator (`operator.py`) kills, cuts the power, partitions, slows disks down
or fills them, moves clocks, restarts, promotes and hands over.

Everything random comes from the seed, including trio's order of tasks, so that a failing seed replays exactly. The
`History` judges what clients saw:

- an acknowledged message is readable, at its queue offset, after any single fault that its mode promises to survive;
- what is read was sent, and to that queue; messages of one producer keep their order; only a message that was sent
  again is there twice;
- a slave's log is a prefix of its master's, and after all faults have healed the slaves catch up and sends succeed;
- tables that a master answered are there; no name vanishes and no offset goes back; deleted topics stay deleted;
- what waits comes: delayed and timer messages, halves of transactions, popped messages that nobody acked.

Two simplifications: the timer wheel has 8,192 slots, because a file of 38 MB would take most of the time, and tables
are copied every 3 s.

The operator knows the promise of each mode and keeps to it: a slave is promoted only if it has all that was
acknowledged, and the power of a master is cut only while there is such a slave. `python -m
gateway.broker.replication.tests.simulation --seeds 10000` runs many seeds, `--seed 7 --trace` shows one.
"""
