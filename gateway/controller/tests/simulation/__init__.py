"""Controllers, their etcd and the replicas of one broker name in one process on virtual time, with faults.

Theory of operation
-------------------
`story.py` runs one seed. The controllers are whole ones: rules, leadership, liveness, request handlers and the store in
etcd with its client. They differ from real ones in what is around them:

- `machines.py`: a network whose links may be cut in one direction, machines that are stopped or suspended, and clocks
  that are fast, slow, or stand still while a machine is suspended;
- `etcd.py`: three members with revisions, transactions and leases. A member may be down, hung or cut off from the
  others. An answer may be lost, or come too late, or be an error although the change was made;
- `replicas.py`: brokers as small models. Each keeps the protocol: it applies for an id, sends heartbeats, obeys newer
  roles only, copies the log of its master, reports the replicas in sync, and accepts messages only with a lease.

The laws (`laws.py`) are judged at each write to etcd, each answer, and each message:

- no two masters of one epoch, and no master that accepts while a former one still does;
- no election from outside of the replicas in sync, unless unclean elections are on;
- broker ids are unique, epochs only grow, and a change of the replicas in sync that was accepted is never undone;
- a message that all replicas in sync had acknowledged is in the log of each later master;
- no two controllers lead at once, and when all faults have healed, there is a master that accepts.

Everything random comes from the seed: `python -m gateway.controller.tests.simulation --seed 7 --trace` shows one.
"""
