"""`python -m fluxmq` is the `fluxmq` command."""
from fluxmq.app.cli import main

if __name__ == "__main__":
    main()
