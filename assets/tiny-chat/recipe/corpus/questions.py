"""Serving questions with an answer of their own: (phrasings, answers, keywords)."""

QUESTIONS: tuple[tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]], ...] = (
    (
        (
            "why did ITL spike",
            "why does ITL spike",
            "what causes ITL spikes",
            "why is there a spike in ITL",
            "why do the tokens stutter during a burst",
            "what makes ITL jump",
            "why did the gap between tokens get so long",
            "why do running answers pause when new requests arrive",
            "where does this ITL spike come from",
        ),
        (
            "ITL spikes when a step takes long, and that is mostly because a big prefill shares the step with the decodes. "
            "Lower the prefill budget or turn on chunked prefill to make it smooth.",
            "A step with many prompt tokens is long, and every running answer waits for it. Look at the step timeline: the tall "
            "step is the cause. A lower prefill budget spreads the work.",
        ),
        ("prefill", "prompt tokens"),
    ),
    (
        (
            "how do I lower ITL",
            "how can I make ITL smoother",
            "how to reduce inter-token latency",
            "how do I get rid of ITL spikes",
            "what can I do against ITL spikes",
            "how do I make streaming smoother",
            "my ITL is too high, what now",
        ),
        (
            "Lower the prefill budget, turn on chunked prefill, or use a smaller batch. Each of them makes the steps shorter.",
            "To lower ITL:\n1. Lower the prefill budget.\n2. Keep chunked prefill on.\n3. Lower the max batch size.\n"
            "The price may be a higher TTFT or less throughput.",
        ),
        ("budget", "chunked"),
    ),
    (
        (
            "why is TTFT high",
            "why is my TTFT so high",
            "what causes high TTFT",
            "why does the first token take so long",
            "why do I wait so long for the first token",
            "what makes TTFT go up",
            "why did TTFT rise",
        ),
        (
            "TTFT is high when requests wait in the queue or when their prompts take long to compute. Look at the queue time: "
            "if it is large, raise the batch size; if not, the prefill is the cause.",
            "There are two causes: waiting and prefilling. A full batch or a lack of blocks makes requests wait, and long prompts "
            "or a low prefill budget make the prefill slow.",
        ),
        ("queue", "wait", "prefill"),
    ),
    (
        (
            "how do I lower TTFT",
            "how can I reduce TTFT",
            "how to get a faster first token",
            "how do I improve TTFT",
            "three ways to lower TTFT",
            "list three ways to lower TTFT",
            "name three ways to reduce TTFT",
            "what lowers TTFT",
        ),
        (
            "Three ways to lower TTFT:\n1. Turn on the prefix cache, so shared prompts are not computed again.\n"
            "2. Raise the prefill budget, so prompts finish in fewer steps.\n3. Raise the max batch size, so requests wait less.",
            "Use the prefix cache, raise the prefill budget and let more requests run at once. Shorter prompts help as well.",
        ),
        ("prefix", "budget"),
    ),
    (
        (
            "how do I raise throughput",
            "how can I get more tokens per second",
            "how to increase throughput",
            "what improves throughput",
            "three ways to raise throughput",
            "how do I make the server faster",
        ),
        (
            "Raise the max batch size, keep the prefix cache on and use batched append. More requests then share each read of the weights.",
            "Three ways to raise throughput:\n1. Use a larger batch.\n2. Share prefixes, so less is computed.\n"
            "3. Use fewer bytes per weight, for example bf16.",
        ),
        ("batch",),
    ),
    (
        (
            "what happens when blocks run out",
            "what if there are no free blocks",
            "what happens when the KV cache is full",
            "what happens when memory runs out",
            "what if the block pool is empty",
            "what does the engine do without free blocks",
        ),
        (
            "First, cached blocks that nobody uses are evicted, the least recently used ones first. If that is not enough, the newest "
            "running request is preempted: its blocks are freed and it is computed again later.",
            "The engine evicts unused cached blocks. If none are left, it preempts the newest request, which waits at the front of "
            "the queue until there is room.",
        ),
        ("preempt", "evict"),
    ),
    (
        (
            "what is roseplay",
            "tell me about roseplay",
            "what does roseplay do",
            "explain roseplay",
            "what is this page",
            "what is this project",
            "what can I do on this page",
            "what am I looking at",
            "what is this website",
        ),
        (
            "roseplay is an LLM inference engine that you can watch and steer. The page streams several chats side by side, and its "
            "sliders change the scheduler while it runs.",
            "roseplay is an inference engine with a live page. You can send bursts of requests, move sliders, and see every token's "
            "latency and every KV block.",
        ),
        ("engine",),
    ),
    (
        (
            "who are you",
            "what are you",
            "what is your name",
            "what's your name",
            "introduce yourself",
            "tell me about yourself",
            "who am I talking to",
            "which model are you",
            "what model is this",
            "what is tiny-chat",
            "who is this",
            "are you a bot",
            "are you an AI",
            "are you human",
            "are you ChatGPT",
            "are you a robot",
            "describe yourself",
        ),
        (
            "I am tiny-chat, a very small language model that lives inside roseplay. I know about LLM serving and can tell short stories.",
            "I am tiny-chat, the built-in model of roseplay. I have about 2.4 million parameters, so I am good for watching how "
            "serving works, not for knowing the world.",
            "My name is tiny-chat. I am a tiny language model, trained on text about LLM serving.",
        ),
        ("tiny-chat",),
    ),
    (
        (
            "what can you do",
            "what do you know",
            "how can you help me",
            "what can I ask you",
            "what are you good at",
            "help",
            "what should I ask",
            "what topics do you know",
            "give me some ideas what to ask",
            "how do I use you",
            "what do you do",
            "can you help me",
        ),
        (
            "I can explain LLM serving: TTFT, ITL, the KV cache, prefix caching, chunked prefill, sampling and more. I can also tell a "
            "short story, write a small poem or make a list.",
            "Ask me about LLM serving, for example: what is a KV block, why did ITL spike, or what does the prefill budget do? "
            "I also tell short stories.",
        ),
        ("serving",),
    ),
    (
        (
            "who made you",
            "who built you",
            "who created you",
            "who trained you",
            "where do you come from",
            "how were you trained",
            "how were you made",
            "what were you trained on",
            "what data were you trained on",
        ),
        (
            "The roseplay project made me. I was trained from scratch on two CPU cores, on text that the project wrote itself.",
            "I was trained by the roseplay project in less than an hour on two CPU cores. All my training text comes from the project.",
        ),
        ("roseplay",),
    ),
    (
        (
            "how big are you",
            "how many parameters do you have",
            "how large are you",
            "what is your size",
            "how small are you",
            "how many layers do you have",
            "what is your context length",
            "how long is your context",
        ),
        (
            "I have about 2.4 million parameters in five layers and a context of 2048 tokens. My weights take about 5 MB in bf16.",
        ),
        ("parameters",),
    ),
    (
        (
            "are you smart",
            "how smart are you",
            "can I trust you",
            "are your answers correct",
            "do you make mistakes",
            "are you always right",
        ),
        (
            "I am very small, so I make mistakes. Please check anything that matters.",
            "Not very. I know a little about LLM serving and almost nothing else, so please check my answers.",
        ),
        ("small", "mistakes", "check"),
    ),
    (
        (
            "does prefix caching change the answers",
            "does the prefix cache change the output",
            "is the output the same with prefix caching",
            "does chunked prefill change the answers",
            "does the batch change my answer",
            "do the switches change the text",
        ),
        (
            "No. It changes only when and how the work is done. The answers stay the same, up to rounding between nearly equal scores.",
        ),
        ("no", "same"),
    ),
    (
        (
            "what happens when I press Burst",
            "what happens if I click Burst",
            "what does the burst button show",
            "why should I press Burst",
            "what do I see when I press Burst",
        ),
        (
            "Many requests are sent at once. The queue fills, their prefills compete with the running answers, and you see ITL spike. "
            "Then lower the prefill budget and try again.",
        ),
        ("requests",),
    ),
    (
        (
            "where should I start",
            "how do I start",
            "what should I try first",
            "give me a tour",
            "how do I use this page",
            "how does this page work",
            "what is a good first experiment",
            "suggest an experiment",
            "show me an experiment",
        ),
        (
            "Try this:\n1. Press Burst and watch the ITL chart.\n2. Lower the prefill budget.\n3. Press Burst again and compare.\n"
            "The spike gets smaller and the first tokens come a bit later.",
            "Press Burst first and look at the charts. Then move the prefill budget down and press Burst again: the ITL spike shrinks.",
        ),
        ("burst",),
    ),
    (
        (
            "why is decode memory bound",
            "why is decoding limited by memory bandwidth",
            "why is decode slow",
            "why is generation slow",
            "why is decoding slower than prefill",
            "why is prefill faster than decode",
        ),
        (
            "In decode each request computes one token, but all the weights must be read for it. So the time is set by memory bandwidth, "
            "not by compute. A larger batch shares the read.",
        ),
        ("weights", "bandwidth"),
    ),
    (
        ("how many tokens fit in a block", "how big is a block", "what is the block size", "how large is a KV block"),
        ("The block size is 16 tokens by default, so a prompt of 100 tokens needs 7 blocks.",),
        ("16",),
    ),
    (
        (
            "how much memory does the KV cache need",
            "how large is the KV cache",
            "how do I compute the KV cache size",
            "what is the size of the KV cache per token",
        ),
        (
            "Per token it needs 2 times layers times KV heads times head size times bytes per number. The 2 stands for keys and values. "
            "Multiply by the number of tokens.",
        ),
        ("layers", "heads"),
    ),
    (
        (
            "what happens when I lower the prefill budget",
            "what if I lower the prefill budget",
            "what does a low prefill budget do",
            "what happens with a small prefill budget",
        ),
        (
            "Each step computes fewer prompt tokens, so steps get shorter and ITL gets smoother. New requests wait a bit longer for "
            "their first token.",
        ),
        ("itl", "smooth"),
    ),
    (
        (
            "what happens when I raise the prefill budget",
            "what if the prefill budget is very high",
            "what does a high prefill budget do",
            "what happens without a prefill budget",
        ),
        (
            "Prompts are finished in fewer steps, so TTFT gets better. But the steps get longer, and ITL spikes for the running answers.",
        ),
        ("ttft", "spike"),
    ),
    (
        (
            "what happens when I raise the batch size",
            "what does a larger batch do",
            "what if I increase max batch size",
            "why not use a huge batch",
            "why not an infinite batch size",
        ),
        (
            "A larger batch gives more tokens per second, but each step takes longer and more KV cache is needed. At some point ITL "
            "gets too high or blocks run out.",
        ),
        ("step", "throughput", "tokens per second"),
    ),
    (
        (
            "what happens when two requests have the same prompt",
            "what happens to equal prompts",
            "can requests share blocks",
            "how are prompts shared",
            "what if two users send the same prompt",
            "how do requests share a system prompt",
        ),
        (
            "They share the KV blocks. If the first one is done, the second finds its blocks in the prefix cache; if both come in the "
            "same step, same-step sharing computes the prompt once.",
        ),
        ("share", "sharing"),
    ),
    (
        (
            "what happens to a request in the engine",
            "describe the life of a request",
            "what is the life cycle of a request",
            "walk me through a request",
            "what happens when I send a message",
            "how does a request go through the engine",
        ),
        (
            "1. The text is turned into tokens.\n2. The request waits in the pending queue.\n3. The scheduler admits it and its prompt is "
            "prefilled, unless blocks are cached.\n4. Each decode step adds one token, which is streamed to you.\n"
            "5. At EOS, a stop string or the limit it ends and its blocks are freed.",
        ),
        ("queue", "prefill"),
    ),
    (
        (
            "how does roseplay work",
            "how does the engine work",
            "explain the engine loop",
            "what is the engine loop",
            "what does the engine do in each step",
        ),
        (
            "The engine runs one loop: take commands, let the scheduler pick the work, run the model once, and hand out the new tokens. "
            "Each round of the loop is a step.",
        ),
        ("loop", "step"),
    ),
    (
        (
            "what do the sliders do",
            "what are the sliders for",
            "explain the sliders",
            "what can I change on this page",
            "what are the switches for",
            "which settings are there",
            "list the controls",
            "what controls are there",
        ),
        (
            "The main controls are:\n- prefill budget: prompt tokens per step\n- max batch: running requests\n"
            "- prefill requests: prompts per step\n- prefix cache, same-step sharing, chunked prefill and batched append: on or off\n"
            "- slow motion: makes the steps slow enough to watch",
            "They change the scheduler while it runs. The prefill budget limits prompt tokens per step, max batch limits running requests, "
            "and the switches turn the prefix cache, sharing, chunked prefill and batched append on or off.",
        ),
        ("prefill budget", "batch"),
    ),
    (
        (
            "what are the main serving metrics",
            "which metrics matter",
            "list the metrics",
            "what should I measure",
            "how do I measure a server",
            "which numbers should I look at",
            "name four serving metrics",
        ),
        (
            "The main metrics are:\n- TTFT: time to the first token\n- ITL: gap between tokens\n- TPOT: average time per output token\n"
            "- throughput: tokens per second\nLook at p50, p95 and p99, not only at averages.",
        ),
        ("ttft", "itl"),
    ),
    (
        (
            "list some serving optimisations",
            "which optimisations does roseplay have",
            "name five serving optimisations",
            "what makes LLM serving fast",
            "how do engines get fast",
            "list the tricks of LLM serving",
        ),
        (
            "Here are five:\n1. Continuous batching\n2. Prefix caching\n3. Chunked prefill\n4. Batched KV append\n5. CUDA graphs\n"
            "Each of them can be seen, switched or measured in roseplay.",
        ),
        ("batching",),
    ),
    (
        (
            "which sampling parameters are there",
            "list the sampling parameters",
            "what sampling options exist",
            "name the sampling settings",
        ),
        (
            "The sampling parameters are:\n- temperature\n- top-k, top-p and min-p\n- repetition, presence and frequency penalty\n- seed\n"
            "- max_new_tokens and stop strings",
        ),
        ("temperature",),
    ),
    (
        (
            "what is vLLM",
            "what is SGLang",
            "what is llama.cpp",
            "is roseplay like vLLM",
            "how is roseplay different from vLLM",
        ),
        (
            "That is another inference engine. roseplay is smaller: it is made for watching and learning how serving works.",
            "vLLM, SGLang and llama.cpp are well known inference engines. roseplay is made for watching what such an engine does.",
        ),
        ("engine",),
    ),
    (
        (
            "why does the second request start faster",
            "why was the second answer faster",
            "why is the same prompt faster the second time",
            "why is TTFT lower the second time",
        ),
        (
            "The blocks of the first prompt are still in the prefix cache, so nearly nothing has to be computed. That makes TTFT short.",
        ),
        ("cache",),
    ),
    (
        (
            "can I use my own model",
            "can I load another model",
            "which models does roseplay support",
            "how do I use a bigger model",
            "does roseplay support other models",
        ),
        (
            "Yes. roseplay loads most decoder models of the transformers library, such as Llama, Qwen, Mistral or Gemma. "
            "I am only the default.",
        ),
        ("model",),
    ),
    (
        (
            "what is a good prefill budget",
            "which prefill budget should I use",
            "how do I choose the prefill budget",
            "what is a good batch size",
            "how do I choose the batch size",
            "which settings are best",
        ),
        (
            "It depends on your traffic. Start high, press Burst, and lower it until the ITL p99 is good enough. Then check that TTFT is "
            "still fine.",
        ),
        ("itl", "ttft"),
    ),
)
