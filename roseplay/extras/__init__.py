"""Extensions of roseplay, one a folder. The core runs without them."""
