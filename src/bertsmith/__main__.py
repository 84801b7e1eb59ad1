"""`python -m bertsmith`: the same as the `bertsmith` command."""

from bertsmith.cli import main

if __name__ == "__main__":
    main()
