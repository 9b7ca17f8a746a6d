"""Commands that ask the servers of a RocketMQ cluster: topics, groups, messages, dead letters, brokers, settings.

`client.py` connects to servers and sends requests; modules such as `topics.py` turn answers into plain rows and facts;
`output.py` prints these as tables or JSON; `commands/` defines the command line. No server imports this package.
"""
