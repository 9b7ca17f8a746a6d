"""Requests and answers that passed through the gateway, and the rules that say what each request code means."""
