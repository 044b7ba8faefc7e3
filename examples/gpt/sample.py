"""Text from a trained model: `python sample.py runs/tiny-dion --prompt 'def '`."""

from dataclasses import dataclass
from pathlib import Path

import checkpoint
import corpus
import torch
from errors import Problem, run_script
from flags import OneSentenceParser, positive, rank_share, whole
from model import GPT, Shape
from presets import STANDARD_LIBRARY
from tokenizer import Tokenizer, for_vocabulary
from torch import Tensor

# A token that follows itself so often is not drawn again: a small model would not find out of a line of "#".
LONGEST_RUN = 24


@dataclass(frozen=True)
class Sampling:
    """How tokens are drawn.

    Args:
        length: how many at most; a document may end before.
        temperature: what logits are divided by; below 1 choices are safer.
        top_p: drawn are the most probable tokens alone, as many as have this share together.
    """

    length: int
    temperature: float = 0.8
    top_p: float = 0.8
    seed: int = 0


@torch.no_grad()
def generate(model: GPT, prompt: Tensor, context: int, separator: int, sampling: Sampling) -> list[int]:
    """What follows `prompt` (length,) up to `separator`, each token drawn given at most the last `context` ones."""
    generator = torch.Generator(device=prompt.device).manual_seed(sampling.seed)
    tokens = prompt
    for _ in range(sampling.length):
        logits = model(tokens[None, -context:])[0, -1].float()
        last = tokens[-LONGEST_RUN:]
        if len(last) == LONGEST_RUN and bool((last == last[0]).all()):
            logits[last[0]] = -torch.inf
        drawn = draw(torch.softmax(logits / sampling.temperature, dim=0), sampling.top_p, generator)
        if drawn.item() == separator:
            break
        tokens = torch.cat((tokens, drawn))
    return [int(token) for token in tokens[len(prompt) :]]


def draw(probabilities: Tensor, top_p: float, generator: torch.Generator) -> Tensor:
    """One of the most probable tokens that reach `top_p` together: (1,)."""
    ordered, tokens = probabilities.sort(descending=True)
    ordered[ordered.cumsum(0) - ordered >= top_p] = 0
    return tokens[torch.multinomial(ordered, 1, generator=generator)]


def sample_text(model: GPT, tokenizer: Tokenizer, prompt: str, context: int, sampling: Sampling) -> str:
    """`prompt`, taken as the beginning of a document, and what the model makes of it, to the end of a line."""
    tokens = [tokenizer.separator, *(int(token) for token in tokenizer.encode(prompt.encode()))]
    start = torch.tensor(tokens, device=model.head.weight.device)
    drawn = generate(model, start, context, tokenizer.separator, sampling)
    return prompt + whole_lines(tokenizer.decode(drawn))


def whole_lines(text: str) -> str:
    """Without its last line, which may stop anywhere; all of it where it has but one."""
    return (text.rpartition("\n")[0] or text).rstrip()


def default_prompt(data: str | None) -> str:
    """What a sample begins with unless the user says it: `data` is the recipe's, None where it names none."""
    return corpus.PROMPT if data == STANDARD_LIBRARY else ""


def main(arguments: list[str]) -> int:
    parser = OneSentenceParser(prog="sample.py", description="Continue a text with a trained model.")
    parser.add_argument("run", type=Path, help="the folder of a run")
    parser.add_argument("--prompt", help="text to continue (default: a class for the standard library, else a start)")
    parser.add_argument("--length", type=whole(1), default=500, help="tokens to draw at most (500)")
    parser.add_argument("--temperature", type=positive, default=0.8, help="below 1: safer choices (0.8)")
    parser.add_argument("--top-p", type=rank_share, default=0.8,
                        help="share of the most probable tokens, which alone are drawn; 1: all (0.8)")  # fmt: skip
    parser.add_argument("--seed", type=whole(0), default=0)
    given = parser.parse_args(arguments)
    state = checkpoint.newest(given.run, print)
    if state is None:
        raise Problem(f"{given.run} holds no checkpoint")
    recipe = state["recipe"]
    model = GPT(Shape(recipe["vocab"], recipe["layers"], recipe["d_model"], recipe["heads"]))
    model.load_state_dict(state["model"])
    tokenizer = for_vocabulary(recipe["vocab"])
    prompt = default_prompt(recipe.get("data")) if given.prompt is None else given.prompt
    sampling = Sampling(given.length, given.temperature, given.top_p, given.seed)
    print(sample_text(model, tokenizer, prompt, recipe["context"], sampling))
    return 0


if __name__ == "__main__":
    run_script(main)
