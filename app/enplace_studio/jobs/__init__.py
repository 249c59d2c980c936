"""Work outside the event loop: in worker processes, in threads, and in later turns."""
