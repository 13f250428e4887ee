"""The fair-share queue: ledger, planner, dispatcher, preemption, restart, status."""
