"""Pop consumption: a consumer takes messages for an invisible time and acks them, or another one gets them.

A pop reads like a pull, writes a checkpoint to the revive topic, moves the group's consumer offset and answers
(`pop_handler.py`). `reviver.py` keeps what is out and revives it in time; all of it is in messages of the official
format, so an official broker can take over. Ordered pops have no checkpoint: `ordered_pops.py` blocks the queue until
all of their messages are acked.

Requests arrive through `gateway/broker/processors/pop.py`; `service.py` builds the parts.
"""
