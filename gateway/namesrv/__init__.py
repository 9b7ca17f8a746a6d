"""The namesrv: registers brokers and answers clients' route requests."""
