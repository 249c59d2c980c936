"""Child processes: how messages are framed, and how a process is started and stopped."""
