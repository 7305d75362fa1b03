"""The text of simulated answers, which no model wrote."""

CANNED_TEXT = (
    "This answer is simulated: no model has read your question. A cost model says how long each step would take on the"
    " hardware that was chosen, and the real scheduler, prefix cache and block pool serve the requests with it. So the"
    " times are estimates, but the order of requests, the sharing of blocks, the waiting and the preemptions are what"
    " this engine would do. Watch the gaps between the words while a long prompt arrives, change the prefill budget, and"
    " send a burst. The text goes on from the beginning until the answer has as many tokens as were asked for.\n\n"
)
