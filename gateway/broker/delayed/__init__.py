"""Messages for later: delay levels and timer messages."""
