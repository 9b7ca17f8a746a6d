"""The namesrv: which brokers and topics there are, and where."""
