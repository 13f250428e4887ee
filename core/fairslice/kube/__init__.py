"""Kubernetes as fairslice needs it: objects, client, reflectors."""
