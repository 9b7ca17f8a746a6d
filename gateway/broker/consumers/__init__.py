"""Consumers: the registry of clients, groups, consumer offsets, queue locks and conflicting subscriptions."""
