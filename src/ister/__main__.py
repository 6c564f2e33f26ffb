"""`python -m ister` is `ister`."""

from ister.cli.main import main

if __name__ == "__main__":
    main()
