"""The domain of GPU sharing, and the thin I/O that every part of fairslice shares."""
