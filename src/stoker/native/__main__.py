"""`python -m stoker.native` builds the libraries where they are used from."""

from stoker.native.building import main

main()
