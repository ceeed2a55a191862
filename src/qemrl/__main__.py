"""`python -m qemrl` is `qemrl`."""

from qemrl.cli import main

main()
