"""Pop consumption: messages are taken for a while, then done (acked), or given to somebody else.

Requests reach it through gateway.broker.processors.pop; the parts are put together in `parts`.
"""
