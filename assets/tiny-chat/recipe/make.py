"""Make tiny-chat from nothing: corpus, tokenizer, training, evaluation. Run it as a script; it needs no network."""

import argparse
from pathlib import Path

import torch
from corpus.conversations import conversations
from encode import Encoder
from evaluate import report
from tokenizer import texts_of, train_tokenizer
from train import build_model, train

SEED = 20
SAMPLES = 120_000
TOKENIZER_SAMPLES = 20_000
FINISH_SHARE, FINISH_EXERCISES, FINISH_STRENGTH = 0.2, 0.4, 0.3


def make(out: Path, samples: int) -> None:
    """Learn the tokenizer, train on `samples` samples, finish, save to `out` and evaluate.

    The finish is a shorter run at a lower rate, with many exercises in copying, counting and listing.
    """
    torch.manual_seed(SEED)
    corpus = list(conversations(SEED, samples))
    tokenizer = train_tokenizer(text for sample in corpus[:TOKENIZER_SAMPLES] for text in texts_of(sample))
    encoder = Encoder(tokenizer)
    model = build_model(tokenizer)
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters", flush=True)
    train(model, tokenizer, encoder(corpus), out, SEED, 1.0)
    finish = list(conversations(SEED + 1, int(samples * FINISH_SHARE), FINISH_EXERCISES))
    train(model, tokenizer, encoder(finish), out, SEED + 1, FINISH_STRENGTH)
    report(out)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path(__file__).resolve().parent.parent, help="folder for the model")
    parser.add_argument("--samples", type=int, default=SAMPLES, help="training samples; fewer for a quick try")
    parser.add_argument("--threads", type=int, default=2, help="CPU threads")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    make(arguments.out, arguments.samples)
