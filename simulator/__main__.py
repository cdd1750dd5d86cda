"""python -m simulator = dtsim."""

from simulator.cli import main

if __name__ == "__main__":
    main()
