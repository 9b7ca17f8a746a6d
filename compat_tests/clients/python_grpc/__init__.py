"""The driver of the stock Python client that speaks gRPC. It runs in an environment without our packages."""
