"""The paths of the requests with messages: send, pull, retry, and staged batches."""
