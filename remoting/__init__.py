"""The remoting protocol: typed requests and bodies, connections, servers and clients.

Handlers that answer requests live in `gateway`.
"""
