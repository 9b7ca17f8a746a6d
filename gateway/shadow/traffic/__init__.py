"""Exchanges that passed through the gateway, and the rules that say what each request code means for a target."""
