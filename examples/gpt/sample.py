"""Text from a trained model: `python sample.py runs/tiny-dion --prompt 'def '`."""

from pathlib import Path

import checkpoint
import corpus
import torch
from errors import Problem, run_script
from flags import OneSentenceParser, positive, whole
from model import GPT, Shape
from presets import STANDARD_LIBRARY
from tokenizer import Tokenizer, for_vocabulary
from torch import Tensor


@torch.no_grad()
def generate(model: GPT, prompt: Tensor, count: int, context: int, temperature: float, seed: int) -> list[int]:
    """`count` tokens that follow `prompt` (length,), each drawn given at most the last `context` ones."""
    generator = torch.Generator(device=prompt.device).manual_seed(seed)
    tokens = prompt
    for _ in range(count):
        logits = model(tokens[None, -context:])[0, -1].float()
        probabilities = torch.softmax(logits / temperature, dim=0)
        drawn = torch.multinomial(probabilities, 1, generator=generator)
        tokens = torch.cat((tokens, drawn))
    return [int(token) for token in tokens[len(prompt) :]]


def sample_text(
    model: GPT, tokenizer: Tokenizer, prompt: str, count: int, context: int, temperature: float, seed: int
) -> str:
    """`prompt`, taken as the beginning of a document, and what the model makes of it."""
    tokens = [tokenizer.separator, *(int(token) for token in tokenizer.encode(prompt.encode()))]
    start = torch.tensor(tokens, device=model.head.weight.device)
    drawn = generate(model, start, count, context, temperature, seed)
    return prompt + tokenizer.decode(drawn)


def default_prompt(data: str | None) -> str:
    """What a sample begins with unless the user says it: `data` is the recipe's, None where it names none."""
    return corpus.PROMPT if data == STANDARD_LIBRARY else ""


def main(arguments: list[str]) -> int:
    parser = OneSentenceParser(prog="sample.py", description="Continue a text with a trained model.")
    parser.add_argument("run", type=Path, help="the folder of a run")
    parser.add_argument("--prompt", help="text to continue (default: 'def ' for the standard library, else a start)")
    parser.add_argument("--length", type=whole(1), default=500, help="tokens to draw (500)")
    parser.add_argument("--temperature", type=positive, default=0.8, help="below 1: safer choices (0.8)")
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
    print(sample_text(model, tokenizer, prompt, given.length, recipe["context"],
                      given.temperature, given.seed))  # fmt: skip
    return 0


if __name__ == "__main__":
    run_script(main)
