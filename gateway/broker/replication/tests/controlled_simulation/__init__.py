"""Whole brokers under whole controllers in one process on virtual time, with faults that a seed decides.

Theory of operation
-------------------
The brokers, files, network, clients and laws are those of `tests/simulation`; the controllers and their etcd are those
of `gateway/controller/tests/simulation`. Instead of an operator, the controllers decide who is master:

- `controllers.py`: controllers that listen on the network of the brokers;
- `brokers.py`: a broker with all parts of controller mode: identity, heartbeats, lease, roles, epochs, AutoSwitchHA,
  confirmed messages, hand-over and relay;
- `group.py`: the route to the newest master, and the faults. Brokers are killed, lose power, stop cleanly or hand over.
  Links are cut, also in one direction. Controllers end, members of etcd fail, answers of etcd are lost or late;
- `modes.py`: for how many copies an answer waits, by the seed;
- `laws.py`: what holds besides the laws of both simulations;
- `story.py`: one seed.

Further laws, of messages that wait for all replicas in sync (allAckInSyncStateSet):

- no broker stores a message after one of a later epoch has stored one, nor while another one may;
- an acknowledged message is in the log of each replica in sync, and so of each later master. Only if the power of a
  replica was cut, and another fault hit the group at about the same time, may the last messages be lost;
- whatever a consumer reads at any broker, also at a former master, stays at its offset;
- in the end all logs have the same epochs.

In the other modes (`modes.py`) less is promised:

- an acknowledged message is in the log of as many brokers as `inSyncReplicas` says, or, if that is not set, of one
  replica in sync besides the master;
- if each replica that can be elected has it, it is kept as above. Otherwise a new master may lack what was acknowledged
  while a replica in sync may be behind, but only if another broker was master before, and has not handed over;
- what a consumer reads may be lost with it. What the new master has of a queue stays at its offset.

In all modes a master that is elected again has what it acknowledged, after a loss of power if it has SYNC_FLUSH, and no
master that is alone stores messages that need `minInSyncReplicas`.

`python -m gateway.broker.replication.tests.controlled_simulation --seed 7 --trace` shows one seed.
"""
