"""Commands that ask the servers of a RocketMQ cluster: topics, groups, messages, dead letters, brokers, settings.

`client.py` connects and asks; modules such as `topics.py` turn answers into plain rows and facts; `output.py` prints
these as tables or JSON; `commands/` holds the command line. Nothing of it runs in a server.
"""
