"""The playground's front door: `python app.py --help`. A Hugging Face Space runs this file as it is."""

from roseplay.cli import program

if __name__ == "__main__":
    program("play")
