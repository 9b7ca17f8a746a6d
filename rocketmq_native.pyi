"""The optional extension that native/ builds."""
