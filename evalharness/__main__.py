"""`python -m evalharness`."""

from evalharness.cli import main

if __name__ == "__main__":
    main()
