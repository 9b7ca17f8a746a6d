"""The conformance suite: runs against any endpoint that speaks the remoting protocol."""
