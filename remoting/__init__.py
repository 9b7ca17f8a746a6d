"""What can be asked of a RocketMQ server, and the connections that carry it. No answers are decided here."""
