"""What happened, in one sentence: facts from the frames that the page gets, and the words for them."""
