"""`python -m lins` is the command `lins`."""

from lins.cli import main

if __name__ == "__main__":
    main(prog_name="lins")
