"""Clients of a node: connections, requests, answers, and the limits that they share."""
