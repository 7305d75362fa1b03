"""Describes in a sentence what happened: facts from the page's frames, and the words for them."""
