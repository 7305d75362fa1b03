"""Topics: who computes what, and when."""

from .topic import Topic

SCHEDULING: tuple[Topic, ...] = (
    Topic(
        "scheduler",
        ("the scheduler", "a scheduler", "scheduling", "the LLM scheduler"),
        (
            "The scheduler decides in every step which requests compute how many tokens.",
            "The scheduler is the part of the engine that picks the work of the next step.",
        ),
        (
            "Running requests come first with one token each, then prompt tokens in order of arrival.",
            "It respects the batch size, the prefill budget and the free blocks.",
            "It never looks at the model; it only deals in numbers of tokens and blocks.",
        ),
        ("A scheduler is needed because many requests compete for the same steps and the same memory.",),
        (
            "For example, with 8 requests decoding and a budget of 256 it runs 8 decode tokens and up to 256 prompt tokens.",
        ),
        ("It is like a teacher who decides whose turn it is.",),
        ("scheduler", "decides", "turn", "picks"),
    ),
    Topic(
        "step",
        ("a step", "an engine step", "one step of the engine", "an iteration of the engine"),
        (
            "A step is one pass through the model for all scheduled requests.",
            "In one step the engine schedules work, runs the model once and hands out the new tokens.",
        ),
        (
            "Every decoding request gets one new token per step.",
            "A step may mix decode tokens and prompt chunks.",
            "The length of a step is the token gap that users see.",
        ),
        ("Work is done in steps so that requests can join and leave between them.",),
        ("For example, a step may hold 12 decode tokens and a prompt chunk of 200 tokens.",),
        ("A step is one turn of the wheel: everybody on it moves forward by one word.",),
        ("step", "turn of the wheel"),
    ),
    Topic(
        "prefill",
        ("prefill", "the prefill phase", "prompt processing", "a prefill"),
        (
            "Prefill is the computation of the prompt: all its tokens go through the model and fill the KV cache.",
            "Prefill processes the prompt tokens in parallel and ends with the first output token.",
        ),
        (
            "It is limited by compute, because many tokens are handled at once.",
            "Long prefills delay the decode tokens of other requests.",
            "It determines most of TTFT.",
        ),
        ("Prefill is needed because the model must read the whole prompt before it can answer.",),
        ("For example, a prompt of 500 tokens can be prefilled in a single step.",),
        ("Prefill is the model reading your question before it starts to talk.",),
        ("prefill", "prompt", "reading"),
    ),
    Topic(
        "decode",
        ("decode", "decoding", "the decode phase", "a decode step"),
        (
            "Decode is the phase in which the model produces one new token per step for each request.",
            "In decode each request adds one token per step, reading its whole KV cache to do so.",
        ),
        (
            "It is limited by memory bandwidth, since all weights are read for a few tokens.",
            "Batching helps, because one read of the weights serves every request in the batch.",
            "It goes on until an EOS token, a stop string or the length limit.",
        ),
        ("Decoding goes token by token because each token depends on all the tokens before it.",),
        ("For example, an answer of 50 tokens takes one prefill and then 49 decode steps.",),
        ("Decode is the model speaking: one word after another.",),
        ("decode", "one new token", "one token", "word after"),
    ),
    Topic(
        "chunked_prefill",
        ("chunked prefill", "chunking the prefill", "prefill chunking", "prefill in chunks"),
        (
            "Chunked prefill cuts a long prompt into pieces and computes one piece per step, beside the decodes.",
            "With chunked prefill a long prompt is spread over several steps, so it does not block everyone else.",
        ),
        (
            "It keeps ITL smooth while long prompts arrive.",
            "The price is a slightly later first token for the long prompt.",
            "The chunk size follows from the prefill budget.",
            "The answers stay the same with and without it.",
        ),
        (
            "Chunked prefill is used because one long prompt would otherwise make a long step, and all other users would see a pause.",
        ),
        ("For example, a prompt of 1000 tokens with a budget of 256 takes four steps.",),
        ("Instead of eating the whole cake at once, the model takes one slice at a time and lets others eat too.",),
        ("chunk", "pieces", "slice"),
    ),
    Topic(
        "prefill_budget",
        (
            "the prefill budget",
            "prefill budget",
            "prefill_max_tokens",
            "the prefill token budget",
            "a prefill token budget",
        ),
        (
            "The prefill budget is the largest number of prompt tokens that may be computed in one step.",
            "The prefill budget limits how many prompt tokens a step computes, so that steps stay short.",
        ),
        (
            "A low budget gives smooth ITL but a higher TTFT.",
            "A high budget gives a fast first token but spikes in ITL.",
            "Cached tokens and decode tokens do not count.",
            "Its name in roseplay is prefill_max_tokens.",
        ),
        (
            "The prefill budget is needed because big prefills make long steps, and long steps are pauses for everyone who is decoding.",
        ),
        ("For example, with a budget of 128 a prompt of 512 tokens is spread over four steps.",),
        ("It is a rule that says how much homework may be done before everyone gets a break.",),
        ("budget", "prompt tokens", "rule"),
    ),
    Topic(
        "step_budget",
        ("the step token budget", "step_max_tokens", "max_num_batched_tokens", "the step budget"),
        (
            "The step budget limits prompt tokens and decode tokens of one step together.",
            "step_max_tokens is the largest number of tokens, prompt and decode, in one step; decodes go first.",
        ),
        ("vLLM calls it max_num_batched_tokens.", "What the decodes leave over is used for prompts."),
        ("The step budget is useful because it bounds the time of a step whatever the mix of work is.",),
        ("For example, with a step budget of 256 and 32 decodes, 224 prompt tokens fit.",),
        ("It is the number of seats on the bus: first the regular riders, then the new ones.",),
        ("step", "budget", "together", "seats"),
    ),
    Topic(
        "continuous_batching",
        ("continuous batching", "in-flight batching", "dynamic batching"),
        (
            "Continuous batching lets requests join and leave the batch at every step, instead of waiting for the whole batch to finish.",
            "In continuous batching the batch is rebuilt at each step, so a finished request makes room at once.",
        ),
        (
            "It keeps the machine full although answers have different lengths.",
            "New requests need not wait for the longest answer.",
            "It raises throughput several times over static batching.",
        ),
        (
            "Continuous batching is used because answers differ in length, and waiting for the longest one wastes the machine.",
        ),
        ("For example, if one of 8 answers ends after 10 tokens, a waiting request takes its place in the next step.",),
        ("It is like a carousel where children get on and off at every turn, instead of all at the end.",),
        ("batch", "join", "carousel"),
    ),
    Topic(
        "static_batching",
        ("static batching", "a static batch", "fixed batching"),
        (
            "Static batching starts a group of requests together and waits until all of them are finished.",
            "In static batching the batch stays the same until its longest answer is done.",
        ),
        (
            "Short answers leave their places empty while the long ones go on.",
            "It is simple but wastes much of the machine.",
        ),
        ("Static batching is mostly avoided because the whole batch waits for its slowest member.",),
        ("For example, a batch with answers of 10 and 500 tokens keeps the first place empty for 490 steps.",),
        ("It is a bus that leaves only when everyone has returned.",),
        ("static", "together", "bus"),
    ),
    Topic(
        "batch_size",
        ("batch size", "the batch size", "max batch size", "max_batch_size", "max_num_seqs"),
        (
            "The batch size is the number of requests that run together in one step.",
            "max_batch_size is the largest number of requests that may run at once.",
        ),
        (
            "A larger batch raises throughput, because the weights are read once for all.",
            "A larger batch also makes each step longer and needs more KV cache.",
            "vLLM calls the limit max_num_seqs.",
        ),
        ("The batch size matters because it trades the speed of each user against the speed of the whole server.",),
        (
            "For example, going from 1 to 8 requests may raise throughput six times while each step gets only a bit longer.",
        ),
        ("It is the number of people who ride in the same car: more people per trip, but the car is slower.",),
        ("batch", "together", "at once"),
    ),
    Topic(
        "pending_queue",
        ("the pending queue", "pending queue", "the waiting queue", "admission", "pending-queue admission"),
        (
            "The pending queue holds requests that have been submitted but are not running yet.",
            "With a pending queue, submit only puts the request in line and returns at once; the worker does the model work.",
        ),
        (
            "Requests leave it in order of arrival.",
            "A request is admitted when there is a place in the batch and enough free blocks.",
            "It makes a burst of submits return in well under a millisecond each.",
        ),
        ("A pending queue is needed because submitting must not wait for the model.",),
        ("For example, of 40 requests with a max batch size of 32, eight wait in the queue.",),
        ("It is the line in front of the bakery.",),
        ("queue", "line", "waiting"),
    ),
    Topic(
        "preemption",
        ("preemption", "preemption by recompute", "preempting a request", "being preempted"),
        (
            "Preemption takes a running request out of the batch to free its blocks; it is computed again later.",
            "When blocks run out, the newest request is preempted: its blocks are freed and it returns to the front of the queue.",
        ),
        (
            "The tokens it has already sent are kept and not sent again.",
            "Its full blocks often stay in the prefix cache, so resuming is cheap.",
            "Many preemptions mean that the KV cache is too small for the batch.",
        ),
        (
            "Preemption is needed because nobody knows in advance how long answers will be, so memory can run out while they grow.",
        ),
        ("For example, if 32 requests grow and no block is free, the one that arrived last is put back in the queue.",),
        ("When the table is too small, the last guest who came stands up and sits down again when there is room.",),
        ("preempt", "blocks", "guest"),
    ),
    Topic(
        "fifo",
        ("FIFO", "first in first out", "FIFO order", "first come first served"),
        (
            "FIFO means first in, first out: requests are served in the order of their arrival.",
            "With FIFO the oldest waiting request is always the next one.",
        ),
        (
            "It is fair and nobody waits for ever.",
            "A long request at the head can hold up short ones behind it, which chunked prefill eases.",
        ),
        ("FIFO is used because it is simple, fair and free of starvation.",),
        ("For example, requests A, B and C that arrive in this order start in this order.",),
        ("It is a line at the ice cream shop: who comes first is served first.",),
        ("first", "order"),
    ),
    Topic(
        "packed_batch",
        ("a packed batch", "packing", "packed batches", "cu_seqlens", "ragged batching"),
        (
            "A packed batch puts the tokens of all requests into one row without padding.",
            "Packing joins the tokens of every request end to end, and cu_seqlens marks where each one starts.",
        ),
        ("Nothing is computed for padding.", "Prompt chunks and decode tokens fit in the same row."),
        ("Packing is used because padding all requests to the same length wastes work.",),
        ("For example, chunks of 5, 1 and 3 tokens become one row of 9 with cu_seqlens [0, 5, 6, 9].",),
        ("It is like packing a suitcase without leaving empty space.",),
        ("row", "pack", "padding"),
    ),
    Topic(
        "starvation",
        ("starvation", "decode starvation", "starving requests"),
        (
            "Starvation means that a request waits without end because others are always served first.",
            "Decode starvation happens when prefills take all the steps and running answers stop moving.",
        ),
        ("Serving decodes first prevents it.", "FIFO order prevents it for waiting requests."),
        ("Starvation must be avoided because a user whose answer stands still thinks that the server is broken.",),
        ("For example, endless new prompts without a budget can keep running answers from getting tokens.",),
        ("It is when one child never gets a turn on the swing.",),
        ("starv", "wait", "turn"),
    ),
    Topic(
        "burst_traffic",
        ("a burst", "bursty traffic", "a burst of requests", "burst traffic"),
        (
            "A burst is many requests that arrive at nearly the same time.",
            "Bursty traffic means that requests come in waves instead of evenly.",
        ),
        (
            "Its prefills compete with the answers that are running, so ITL spikes.",
            "A pending queue accepts it at once and a prefill budget spreads the work.",
            "Equal prompts in a burst can share one prefill.",
        ),
        ("Bursts matter because real users arrive in waves, and a server must stay smooth in them.",),
        ("For example, 32 prompts of 200 tokens at once are 6400 prompt tokens of sudden work.",),
        ("It is when the whole school comes to the bakery in the same break.",),
        ("burst", "waves", "same time", "bakery"),
    ),
)
