"""One broker: its tables, the send and pull paths, delayed and transactional messages, and pop consumption."""
