"""``python -m gallery``, in a clone of tiebreak."""

from tiebreak.cli import main

if __name__ == "__main__":
    main("gallery.command", "python -m gallery")
