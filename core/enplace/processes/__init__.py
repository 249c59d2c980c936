"""Child processes: how messages are framed, and how processes are started and stopped."""
