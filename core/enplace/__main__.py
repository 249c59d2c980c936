"""``python -m enplace``."""

from enplace.cli import main

if __name__ == "__main__":
    main()
