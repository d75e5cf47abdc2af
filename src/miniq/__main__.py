"""`python -m miniq` runs the command `miniq`."""

from miniq.cli import main

if __name__ == "__main__":
    main()
