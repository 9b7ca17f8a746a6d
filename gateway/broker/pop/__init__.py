"""Pop consumption: a consumer takes messages for an invisible time and acks them, or another one gets them.

Requests arrive through `gateway/broker/processors/pop.py`; `service.py` builds the parts.
"""
