"""`python -m qemrl` is `qemrl`."""

from qemrl.cli.app import main

main()
