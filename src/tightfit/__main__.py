"""Run the command line as ``python -m tightfit``."""

from tightfit.cli import main

if __name__ == "__main__":
    main()
