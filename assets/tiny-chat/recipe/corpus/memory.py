"""Topics: where keys and values live, and how they are shared."""

from .topic import Topic

MEMORY: tuple[Topic, ...] = (
    Topic(
        "kv_cache",
        ("the KV cache", "KV cache", "KV caching", "the key-value cache", "a KV cache"),
        (
            "The KV cache keeps the keys and values of all earlier tokens, so that each new token needs only its own computation.",
            "The KV cache is the memory in which attention keeps the keys and values of tokens it has already seen.",
        ),
        (
            "It grows by one entry per layer for every token.",
            "It usually limits how many requests fit on a machine.",
            "Without it, every step would compute the whole text again.",
            "In roseplay it is cut into blocks, which are handed out as requests grow.",
        ),
        ("We need the KV cache because otherwise the model would compute the whole prompt again for every new token.",),
        ("For example, after a prompt of 100 tokens the cache holds 100 keys and 100 values in each layer.",),
        ("It is like a notebook: the model writes down what it has read, so it need not read everything again.",),
        ("kv cache", "keys", "notebook"),
    ),
    Topic(
        "kv_block",
        ("a KV block", "KV blocks", "a KV cache block", "a block of the KV cache", "block size"),
        (
            "A KV block is a fixed-size piece of the KV cache that holds the keys and values of a few tokens, for example 16.",
            "A KV block is the unit in which KV cache memory is handed out, often 16 tokens.",
        ),
        (
            "A request takes a new block only when its last one is full.",
            "Blocks of one request need not lie next to each other.",
            "Full blocks can be shared by requests that begin with the same tokens.",
        ),
        (
            "Blocks exist so that memory is not wasted: a request holds only what it uses, plus at most one partly filled block.",
        ),
        ("For example, with 16 tokens per block a prompt of 40 tokens takes 3 blocks, the last one half full.",),
        ("A block is like one page of a notebook: when it is full, you take the next page.",),
        ("block", "page"),
    ),
    Topic(
        "block_table",
        ("a block table", "the block table", "block tables"),
        (
            "A block table lists, in order, which KV blocks hold the tokens of one request.",
            "The block table of a request maps its token positions to blocks in the KV cache.",
        ),
        (
            "Position p lives in entry p divided by the block size.",
            "Attention reads it to find keys and values that are scattered in memory.",
            "Two requests that share a prefix have the same block ids at the start of their tables.",
        ),
        ("Block tables are needed because the blocks of a request may lie anywhere in memory.",),
        ("For example, with 16 tokens per block and the table [7, 2, 9], token 20 lives in block 2.",),
        ("It is like the table of contents of a book whose pages are kept in different drawers.",),
        ("block table", "table"),
    ),
    Topic(
        "block_pool",
        ("the block pool", "a block pool", "the pool of blocks"),
        (
            "The block pool owns all KV blocks and hands them out to requests.",
            "The block pool counts who uses each KV block and keeps the free ones in order.",
        ),
        (
            "At every moment free, cached and active blocks add up to the total.",
            "A freed block keeps its content until somebody needs the space.",
            "Freeing a block twice is an error.",
        ),
        ("A pool is used because handing out equal blocks is fast and leaves no holes in memory.",),
        ("For example, a pool of 1000 blocks with 300 active and 200 cached ones has 500 free.",),
        ("It is a box of equal bricks: you take some to build and put them back when you are done.",),
        ("pool", "blocks", "bricks"),
    ),
    Topic(
        "paged_attention",
        ("paged attention", "PagedAttention", "attention over blocks"),
        (
            "Paged attention is attention that reads keys and values from blocks scattered in memory, found through a block table.",
            "Paged attention stores the KV cache in small blocks, like the pages of virtual memory.",
        ),
        (
            "It avoids reserving the longest possible length for each request.",
            "It makes it possible to share blocks between requests.",
            "The kernel looks up each block in the block table while it computes.",
        ),
        ("Paged attention is used because reserving one long piece of memory for each request wastes most of it.",),
        ("For example, a request of 50 tokens uses four blocks of 16 instead of a reserved 2048 places.",),
        ("Instead of one long roll of paper per story, it uses loose pages and remembers their order.",),
        ("paged", "block", "pages"),
    ),
    Topic(
        "fragmentation",
        ("memory fragmentation", "fragmentation", "wasted KV memory"),
        (
            "Fragmentation is memory that is free or reserved but cannot be used.",
            "Fragmentation means that memory is lost in gaps that are too small or reserved for nothing.",
        ),
        (
            "With blocks, only the last block of a request can be partly empty.",
            "Reserving the longest length for each request wastes most of the memory.",
        ),
        ("Fragmentation matters because lost memory means fewer requests in the batch and less throughput.",),
        ("For example, reserving 2048 places for an answer of 100 tokens wastes 95 percent of them.",),
        ("It is like a shelf with many small gaps, where no big book fits.",),
        ("memory", "gaps", "waste"),
    ),
    Topic(
        "prefix_cache",
        ("prefix caching", "the prefix cache", "prefix cache", "automatic prefix caching", "prompt caching"),
        (
            "Prefix caching keeps the KV blocks of earlier prompts, so that a new request with the same beginning skips that part.",
            "The prefix cache finds KV blocks that were already computed for the same first tokens and reuses them.",
        ),
        (
            "Full blocks are found by a chained hash of their tokens.",
            "Cached tokens cost no prefill, so TTFT falls.",
            "It helps most when many requests share a long system prompt.",
            "It does not change the answers, only the time they take.",
        ),
        ("Prefix caching is useful because many requests start with the same system prompt or the same chat history.",),
        ("For example, if 32 requests share a system prompt of 500 tokens, it is computed once instead of 32 times.",),
        ("If you have already read the first chapter, you can start with the second one.",),
        ("prefix", "same beginning", "chapter", "reuse"),
    ),
    Topic(
        "block_hash",
        ("block hashes", "a block hash", "the chained hash", "hashing blocks"),
        (
            "A block hash is a number computed from the tokens of a block and the hash of the block before it.",
            "The chained hash of a block stands for all tokens up to its end, so equal hashes mean equal prefixes.",
        ),
        (
            "Because the hash is chained, a block is found only when everything before it is equal too.",
            "The tokens are compared as well, so a collision cannot give a wrong answer.",
        ),
        ("Hashes are used because looking up a number is much faster than comparing whole prompts.",),
        (
            "For example, two prompts with the same first 32 tokens have the same hashes for their first two blocks of 16.",
        ),
        ("It is like a label on a box that tells you what is inside without opening it.",),
        ("hash", "label"),
    ),
    Topic(
        "copy_on_write",
        ("copy-on-write", "copy on write", "CoW"),
        (
            "Copy-on-write means that a request copies a shared block just before it writes into it.",
            "With copy-on-write, requests share a block until one of them has to change it; that one gets its own copy.",
        ),
        (
            "The other holders keep the old block unchanged.",
            "It happens only when the reference count of the block is above one.",
            "In roseplay all copies of a step are made in one batched operation.",
        ),
        ("Copy-on-write is needed because a shared block must not change under the other requests that read it.",),
        ("For example, two equal prompts share a half full block; the first one to add a token copies it.",),
        ("Two children share a drawing. Before one of them paints on it, she makes her own copy.",),
        ("copy", "copies", "shared"),
    ),
    Topic(
        "reference_count",
        ("a reference count", "reference counting", "reference counts", "the reference count of a block"),
        (
            "A reference count is the number of requests that hold a block at the moment.",
            "The reference count of a KV block says how many block tables point at it.",
        ),
        (
            "When it falls to zero the block becomes free.",
            "A count above one means that the block is shared.",
            "The sum of all counts equals the number of entries in all block tables.",
        ),
        ("Reference counts are needed so that a shared block is freed only when nobody uses it any more.",),
        ("For example, a system prompt used by eight running requests gives its blocks a count of eight.",),
        ("It counts how many children are still playing with a toy, so it is put away only when nobody is.",),
        ("reference", "count"),
    ),
    Topic(
        "lru",
        ("LRU eviction", "LRU", "least recently used eviction", "cache eviction", "eviction"),
        (
            "LRU eviction gives away the cached block that has not been used for the longest time.",
            "LRU means least recently used: the oldest unused cached block is taken first when space is needed.",
        ),
        (
            "Only blocks that no running request holds can be evicted.",
            "A hit moves a block away from the front of the line.",
            "The tail of a sequence is freed first, because beginnings are shared more often.",
        ),
        (
            "Eviction is needed because the cache is finite, and LRU works well because recent prompts tend to come back.",
        ),
        ("For example, a block last used ten minutes ago is taken before one used a second ago.",),
        ("When the toy box is full, you give away the toy that you have not touched for the longest time.",),
        ("least recently", "lru", "longest", "evict"),
    ),
    Topic(
        "same_step_sharing",
        ("same-step sharing", "same step sharing", "in-step dedup", "prompt deduplication", "dedup"),
        (
            "Same-step sharing lets equal prompts that arrive together be computed once, in the same step.",
            "With same-step sharing a second request in the same step uses the blocks that the first one is computing.",
        ),
        (
            "It works because all keys and values are written before anyone attends to them.",
            "Thirty-two equal prompts in one burst cost a single prefill.",
            "It is the same mechanism as prefix caching, only without waiting for the step to end.",
        ),
        ("Same-step sharing is useful because bursts often carry the same prompt or the same system prompt.",),
        ("For example, a burst of 32 equal prompts with 100 tokens computes 100 tokens, not 3200.",),
        ("If ten friends ask the same question at once, you work out the answer only one time.",),
        ("same step", "together", "same-step", "equal prompts", "once"),
    ),
    Topic(
        "tail_block",
        ("the tail block", "a tail entry", "the partial block", "a partly filled block"),
        (
            "The tail block is the last, partly filled block of a prompt.",
            "A tail entry keeps the partly filled last block of a finished prompt together with its logits.",
        ),
        (
            "With it an exact repeat of a prompt computes no prompt tokens at all.",
            "Whoever continues a shared tail block copies it first.",
        ),
        ("The tail block is kept because full blocks alone would leave the end of the prompt to be computed again.",),
        ("For example, a prompt of 40 tokens has two full blocks of 16 and a tail of 8 tokens.",),
        ("It is the last page of the notebook, which is only half written.",),
        ("tail", "last"),
    ),
    Topic(
        "slot_mapping",
        ("slot mapping", "the slot mapping", "slots", "a KV slot"),
        (
            "The slot mapping tells for every token in a step where in the KV cache its key and value are written.",
            "A slot is the place of one token in the KV cache: block id times block size plus the offset in the block.",
        ),
        (
            "It is built on the host before each step.",
            "With it one write per layer stores the tokens of all requests at once.",
            "Padding tokens point into block 0, which belongs to nobody.",
        ),
        (
            "The slot mapping is needed because the tokens of a step belong to different requests and so to different blocks.",
        ),
        ("For example, with blocks of 16 the third token of block 5 goes to slot 5 times 16 plus 2, which is 82.",),
        ("It is a list that tells every guest which seat is theirs.",),
        ("slot", "seat"),
    ),
    Topic(
        "batched_append",
        ("batched append", "batched KV append", "the batched KV append"),
        (
            "Batched append writes the new keys and values of all requests with one operation per layer.",
            "Batched KV append replaces one small write per request by a single write for the whole batch.",
        ),
        (
            "Without it a step makes layers times requests small writes.",
            "It matters most for large batches, where launching many small operations takes longer than the work.",
        ),
        ("Batched append is used because many tiny operations cost more time than one big one.",),
        ("For example, 12 layers and 32 requests need 12 writes per step instead of 384.",),
        ("Instead of carrying one cup at a time, you carry them all on one tray.",),
        ("append", "write", "tray"),
    ),
)
