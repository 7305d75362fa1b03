"""Topics: how serving is measured."""

from .topic import Topic

METRICS: tuple[Topic, ...] = (
    Topic(
        "ttft",
        ("TTFT", "time to first token", "the time to first token", "first token latency"),
        (
            "TTFT, time to first token, is how long a user waits between sending a request and seeing its first token.",
            "TTFT is the time from submitting a request to receiving its first token.",
        ),
        (
            "It is made of the time in the queue plus the time of the prefill.",
            "Long prompts raise TTFT because every prompt token must be computed before the first answer token.",
            "Prefix caching lowers TTFT, because cached prompt tokens need no computation.",
            "A busy server raises TTFT because new requests wait for a free place in the batch.",
        ),
        (
            "TTFT matters because it decides how responsive a chat feels: people notice the pause before the answer starts.",
        ),
        ("For example, a request sent at 0 ms whose first token arrives at 180 ms has a TTFT of 180 ms.",),
        ("Imagine you ask a question and wait. TTFT is how long you wait until the first word comes back.",),
        ("ttft", "first token"),
    ),
    Topic(
        "itl",
        ("ITL", "inter-token latency", "the inter-token latency", "the gap between tokens"),
        (
            "ITL, inter-token latency, is the gap in time between two tokens of the same answer that follow each other.",
            "ITL is the time between one token of an answer and the next.",
        ),
        (
            "It is set by how long one step of the engine takes.",
            "A large prefill in the same step makes the step long, so ITL spikes for everyone who is decoding.",
            "A lower prefill budget or chunked prefill keeps ITL smooth.",
            "Its percentiles are taken over all gaps of all requests.",
        ),
        ("ITL matters because it is the rhythm of the answer: high or uneven gaps make the text stutter.",),
        ("For example, tokens that arrive at 100 ms, 120 ms and 190 ms have gaps of 20 ms and 70 ms.",),
        ("Imagine someone reading a story to you. ITL is the little pause between one word and the next.",),
        ("itl", "inter-token", "gap"),
    ),
    Topic(
        "tpot",
        ("TPOT", "time per output token", "the time per output token"),
        (
            "TPOT, time per output token, is the average time between tokens of one answer after the first token.",
            "TPOT is the time from the first token to the last, divided by the number of tokens minus one.",
        ),
        (
            "It needs at least two tokens; with one token it has no value.",
            "It is one number for a request, while ITL looks at every single gap.",
            "A low TPOT means that the answer streams quickly.",
        ),
        ("TPOT matters because it tells how fast a whole answer streams once it has started.",),
        ("For example, 11 tokens whose first and last are 500 ms apart have a TPOT of 50 ms.",),
        ("TPOT says how long each word takes on average, once the answer has begun.",),
        ("tpot", "per output token"),
    ),
    Topic(
        "throughput",
        ("throughput", "tokens per second", "serving throughput"),
        (
            "Throughput is how many tokens the engine produces each second, summed over all requests.",
            "Throughput is the amount of work done per second, usually counted in tokens per second.",
        ),
        (
            "Bigger batches raise throughput because one read of the weights serves many requests.",
            "Higher throughput often costs latency, since each step takes longer.",
            "It is a figure of the whole server, not of one user.",
        ),
        ("Throughput matters because it decides how many users one machine can serve, and so what each answer costs.",),
        ("For example, 32 requests at 20 tokens per second each give a throughput of 640 tokens per second.",),
        ("Throughput is like counting all the cookies that a bakery makes in one minute, not just yours.",),
        ("throughput", "per second"),
    ),
    Topic(
        "goodput",
        ("goodput", "useful throughput"),
        (
            "Goodput is the part of the throughput that meets its latency targets.",
            "Goodput counts only the requests whose TTFT and token gaps stay within the promised limits.",
        ),
        (
            "A server can have a high throughput and a low goodput if its answers come too late.",
            "It joins latency and throughput into one number.",
            "It falls quickly once the server is overloaded.",
        ),
        ("Goodput matters because answers that arrive too late are of little use to the people who wait.",),
        (
            "For example, if 100 requests finish each minute but only 70 meet the target, goodput is 70 requests a minute.",
        ),
        ("Goodput counts only the pizzas that arrive while they are still warm.",),
        ("goodput", "target", "limits"),
    ),
    Topic(
        "percentile",
        ("latency percentiles", "percentiles", "a percentile", "a latency percentile"),
        (
            "A latency percentile is the value below which that share of the measurements lies.",
            "Percentiles sort all measured latencies and tell the value at a given share, such as 50, 95 or 99 percent.",
        ),
        (
            "p50 is the typical case, p95 and p99 describe the slow tail.",
            "An average hides rare slow requests, while percentiles show them.",
            "They need many samples: a p99 from ten requests means nothing.",
        ),
        ("Percentiles are used because users remember the slow answers, and an average would hide them.",),
        ("For example, a p95 of 200 ms means that 95 of 100 measurements took 200 ms or less.",),
        (
            "Put all waiting times in a row from short to long. A percentile tells you the time at one spot in that row.",
        ),
        ("percent", "p95", "p99", "p50", "share"),
    ),
    Topic(
        "p99",
        ("p99", "the p99", "p99 latency", "the 99th percentile", "tail latency"),
        (
            "p99 is the latency that 99 percent of the measurements stay below; only one in a hundred is slower.",
            "p99 describes the slow tail: one measurement in a hundred is worse than it.",
        ),
        (
            "It shows spikes that the median hides.",
            "In serving, the p99 of ITL often comes from steps that mix a big prefill with decodes.",
            "A lower prefill budget usually brings the p99 of ITL down.",
        ),
        ("p99 matters because with many tokens and many users, a one in a hundred delay is seen by nearly everyone.",),
        ("For example, a p99 ITL of 340 ms means that one gap in a hundred is longer than 340 ms.",),
        ("If you wait for the bus a hundred times, p99 is about the worst wait you remember.",),
        ("p99", "hundred", "tail"),
    ),
    Topic(
        "p95",
        ("p95", "the p95", "p95 latency", "the 95th percentile"),
        (
            "p95 is the latency that 95 percent of the measurements stay below.",
            "p95 is a percentile: 95 of 100 measurements are at or below it and 5 are slower.",
        ),
        (
            "It sits between the typical p50 and the rare worst cases of p99.",
            "It is a common choice for latency targets because it needs fewer samples than p99.",
        ),
        ("p95 is useful because it shows what unlucky users see without being ruled by one odd sample.",),
        ("For example, a p95 TTFT of 250 ms means that 95 of 100 users waited at most 250 ms.",),
        ("Out of a hundred waits, p95 is longer than ninety-five of them.",),
        ("p95", "95"),
    ),
    Topic(
        "p50",
        ("p50", "the p50", "the median", "median latency", "the 50th percentile"),
        (
            "p50 is the median: half of the measurements are faster and half are slower.",
            "p50, also called the median, is the latency in the middle of all measurements.",
        ),
        ("It describes the typical user.", "It hides the slow tail, so look at p95 and p99 as well."),
        ("p50 is useful because a few extreme values do not move it, unlike the average.",),
        ("For example, of the gaps 10, 20, 30, 40 and 900 ms the p50 is 30 ms.",),
        ("Line up all the waits from short to long. p50 is the one in the middle.",),
        ("median", "half", "middle"),
    ),
    Topic(
        "latency",
        ("latency", "response time", "serving latency"),
        (
            "Latency is how long something takes, seen from the user who waits for it.",
            "Latency is the waiting time of one request, while throughput is the work of the whole server.",
        ),
        (
            "For chat it has two parts: TTFT, the wait for the first token, and ITL, the gap between tokens.",
            "It grows when the batch is large, when prompts are long or when the queue is full.",
        ),
        ("Latency matters because people leave when answers are slow.",),
        ("For example, a TTFT of 200 ms and 30 ms between tokens feel quick in a chat.",),
        ("Latency is how long you wait after you ask for something.",),
        ("latency", "wait", "long"),
    ),
    Topic(
        "queue_time",
        ("queue time", "queueing time", "the time in the queue", "waiting time"),
        (
            "Queue time is the time from submitting a request until the scheduler first works on it.",
            "Queue time is how long a request waits before its first step.",
        ),
        (
            "It is part of TTFT.",
            "It grows when the batch is full or when no blocks are free.",
            "A larger max batch size shortens it, at the price of longer steps.",
        ),
        ("Queue time is worth watching because it tells whether a high TTFT comes from waiting or from computing.",),
        ("For example, a request submitted at 0 ms and first scheduled at 90 ms has a queue time of 90 ms.",),
        ("Queue time is how long you stand in line before it is your turn.",),
        ("queue", "wait", "line"),
    ),
    Topic(
        "e2e",
        ("E2E latency", "end-to-end latency", "E2E"),
        (
            "E2E latency is the time from submitting a request to its last token.",
            "End-to-end latency covers the whole request: queue, prefill and every decode step.",
        ),
        (
            "It is about TTFT plus TPOT times the number of further tokens.",
            "Long answers have a long E2E latency even on a fast server.",
        ),
        ("E2E latency matters for programs that need the complete answer before they go on.",),
        ("For example, a TTFT of 200 ms and 100 more tokens at 20 ms each give about 2.2 seconds.",),
        ("It is the time from asking the question to hearing the very last word.",),
        ("end", "last token", "whole"),
    ),
)
