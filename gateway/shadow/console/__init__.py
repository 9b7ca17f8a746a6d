"""The HTTP console of a running gateway (`server`), and the client with which commands reach it (`client`)."""
