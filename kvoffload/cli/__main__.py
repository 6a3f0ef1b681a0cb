"""python -m kvoffload.cli"""

from kvoffload.cli.entry import main

if __name__ == "__main__":
    main()
