"""python -m kvoffload.cli"""

from kvoffload.cli.main import app

if __name__ == "__main__":
    app(prog_name="kvoffload")
