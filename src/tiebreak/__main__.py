"""``python -m tiebreak``: the command line, wherever the script is not on the path."""

from tiebreak.cli import main

if __name__ == "__main__":
    main()
