"""The playground's front door: `python app.py --help`. A Hugging Face Space runs this file as it is."""

from roseplay.play.main import main

if __name__ == "__main__":
    raise SystemExit(main())
