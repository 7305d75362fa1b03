"""Make tiny-chat from nothing: corpus, tokenizer, training, evaluation. Run it as a script; it needs no network."""

import argparse
from pathlib import Path

import torch
from encode import Encoder
from evaluate import report
from tokenizer import texts_of, train_tokenizer
from train import build_model, train

from corpus.conversations import conversations

SEED = 20
SAMPLES = 150_000
TOKENIZER_SAMPLES = 30_000


def make(out: Path, samples: int) -> None:
    """Generate the corpus, learn the tokenizer, train on `samples` samples, save to `out` and evaluate."""
    torch.manual_seed(SEED)
    corpus = list(conversations(SEED, samples))
    tokenizer = train_tokenizer(text for sample in corpus[:TOKENIZER_SAMPLES] for text in texts_of(sample))
    encoded = Encoder(tokenizer)(corpus)
    model = build_model(tokenizer)
    print(f"{len(corpus):,} samples, {sum(len(sample.ids) for sample in encoded):,} tokens, "
          f"{sum(p.numel() for p in model.parameters()):,} parameters", flush=True)
    del corpus
    train(model, tokenizer, encoded, out, SEED)
    report(out)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path(__file__).resolve().parent.parent, help="folder for the model")
    parser.add_argument("--samples", type=int, default=SAMPLES, help="training samples; fewer for a quick try")
    parser.add_argument("--threads", type=int, default=2, help="CPU threads")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    make(arguments.out, arguments.samples)
