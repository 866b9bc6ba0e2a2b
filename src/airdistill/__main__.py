"""`python -m airdistill` is the command line."""

from airdistill.cli import main

main()
