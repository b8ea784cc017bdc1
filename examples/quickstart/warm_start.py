"""Makes the model folder from nothing: `python -m examples.quickstart.warm_start [OUT]` (about two minutes on one core).

First the tokenizer is trained on rendered demonstrations, then the network is fitted to them: next-token loss on what
the assistant says, and on nothing else. The demonstrations are mostly wrong on purpose (`demonstrations.Habits`), so
that there is something left to learn by reward. The same seed gives the same folder on the same machine and torch.
"""

import argparse
import json
import random
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch.nn import functional as F

from examples.quickstart import tokenizer as words
from examples.quickstart.demonstrations import Episode, Habits, demonstrate, visible_report
from examples.quickstart.muon import Muon
from examples.quickstart.network import Network, Size, hf_config
from examples.quickstart.prompt import FINAL
from examples.quickstart.tasks import Task, combinations, make_task

FOLDER = Path(__file__).with_name("model")
IGNORED = -100


@dataclass(frozen=True, slots=True)
class Fit:
    """How the network is fitted: steps of `batch` episodes, Muon for matrices, AdamW for the rest, linear decay to a tenth."""

    steps: int = 200
    batch: int = 16
    matrix_rate: float = 0.006
    rate: float = 3e-3
    warmup: int = 20
    seed: int = 0


def corpus(tasks: list[Task]) -> list[str]:
    """Texts for the tokenizer, in rendered form: instructions, files inside JSON, the checks' answers."""
    texts = [f"\nok\n{FINAL}"] * len(tasks)
    for task in tasks:
        texts.append(f"user\n{task.instruction}")
        for code in (task.solution, *task.mistakes):
            texts += [json.dumps(code)[1:-1], f"\n{visible_report(task, code)}\n"]
    return texts


def padded(episodes: list[Episode], padding: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(tokens, targets), int64[batch, time]; target i is token i + 1 where the assistant said it, else IGNORED."""
    longest = max(len(episode.tokens) for episode in episodes)
    tokens = torch.full((len(episodes), longest), padding)
    targets = torch.full((len(episodes), longest), IGNORED)
    for row, episode in enumerate(episodes):
        ids, said = torch.tensor(episode.tokens), torch.tensor(episode.sampled)
        tokens[row, : len(ids)] = ids
        targets[row, : len(ids) - 1] = torch.where(said[1:], ids[1:], IGNORED)
    return tokens, targets


def loss_of(network: Network, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Mean negative log-likelihood over the targets that count."""
    counted = targets != IGNORED
    return F.cross_entropy(network.logits(network(tokens)[counted]), targets[counted])


def optimizers(network: Network, fit: Fit) -> tuple[Muon, torch.optim.Optimizer]:
    """Muon for the layers' matrices, AdamW for embeddings and norms."""
    matrices = [p for p in network.layers.parameters() if p.dim() == 2]
    chosen = {id(p) for p in matrices}
    rest = [p for p in network.parameters() if id(p) not in chosen]
    return Muon(matrices), torch.optim.AdamW(rest, lr=fit.rate, betas=(0.9, 0.98), weight_decay=0.0)


def schedule(step: int, fit: Fit) -> float:
    """The learning rate's factor: linear warm-up, then linear decay to 0.1."""
    return min(1.0, (step + 1) / fit.warmup) * (1.0 - 0.9 * step / fit.steps)


def train(network: Network, episodes: list[Episode], padding: int, fit: Fit) -> list[float]:
    """Fits the network in place; returns the loss of every step."""
    muon, adam = optimizers(network, fit)
    losses = []
    for step, batch in enumerate(batches(episodes, fit)):
        network.zero_grad(set_to_none=True)
        loss = loss_of(network, *padded(batch, padding))
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        factor = schedule(step, fit)
        muon.step(fit.matrix_rate * factor)
        adam.param_groups[0]["lr"] = fit.rate * factor
        adam.step()
        losses.append(loss.item())
        if step % 20 == 19:
            print(f"step {step + 1}: loss {sum(losses[-20:]) / 20:.3f}", flush=True)
    return losses


def batches(episodes: list[Episode], fit: Fit) -> list[list[Episode]]:
    """The episodes in batches of about one length, in a seeded order, so that little is padding."""
    rng, made = random.Random(fit.seed), []  # noqa: S311 - reproducible, not secret
    window = fit.batch * 8
    for start in range(0, len(episodes), window):
        alike = sorted(episodes[start : start + window], key=lambda episode: len(episode.tokens))
        cut = [alike[i : i + fit.batch] for i in range(0, len(alike), fit.batch)]
        rng.shuffle(cut)
        made += cut
    return made


def demonstrations(chat: words.ChatTokenizer, tasks: list[Task], habits: Habits, fit: Fit) -> list[Episode]:
    """One episode for every place in every batch."""
    rng = random.Random(fit.seed)  # noqa: S311 - reproducible, not secret
    render = words.renderer(chat)
    return [demonstrate(render, rng.choice(tasks), habits, rng) for _ in range(fit.steps * fit.batch)]


def write_model(folder: Path, network: Network, tokenizer: Tokenizer) -> None:
    """Writes a Hugging Face model folder; weights in bfloat16."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = {f"model.{name}": value.detach().to(torch.bfloat16).contiguous() for name, value in network.state_dict().items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)
    tokenizer.save(str(folder / "tokenizer.json"))
    end, padding = words.id_of(tokenizer, words.EOS), words.id_of(tokenizer, words.PADDING)
    contents = {
        "config.json": hf_config(network.size, end, padding),
        "tokenizer_config.json": words.tokenizer_config(),
        "generation_config.json": {"do_sample": True, "temperature": 1.0, "eos_token_id": end, "pad_token_id": padding},
    }
    for name, content in contents.items():
        (folder / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def make(folder: Path, fit: Fit, habits: Habits) -> list[float]:
    """The whole recipe; returns the losses."""
    torch.set_num_threads(1)
    torch.manual_seed(fit.seed)
    tasks = [make_task(*combination) for combination in combinations("train")]
    tokenizer = words.train(corpus(tasks))
    chat = words.ChatTokenizer(tokenizer)
    network = Network(Size(vocabulary=words.VOCABULARY))
    padding = words.id_of(tokenizer, words.PADDING)
    losses = train(network, demonstrations(chat, tasks, habits, fit), padding, fit)
    write_model(folder, network, tokenizer)
    return losses


def main() -> None:
    parser = argparse.ArgumentParser(description="Makes the quickstart's model folder.")
    parser.add_argument("out", type=Path, nargs="?", default=FOLDER)
    parser.add_argument("--seed", type=int, default=Fit().seed)
    given = parser.parse_args()
    make(given.out, Fit(seed=given.seed), Habits())
    print(f"wrote {given.out}")


if __name__ == "__main__":
    main()
