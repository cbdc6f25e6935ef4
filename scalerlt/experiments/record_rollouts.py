"""Makes the small file of recorded rollouts that ships: `python -m scalerlt.experiments.record_rollouts FILE`.

The policy is `tiny_ouro` with random weights, so no answer is right and no real reward could tell responses apart. The
reward is therefore a probe that has nothing to do with quality: 1 where the sum of the response's token ids is even.
It serves measurements of a learner step (time, memory, gradient error), never a claim about learning.
"""

import sys
from pathlib import Path

import torch
import yaml

from scalerlt.errors import UserError
from scalerlt.models.checkpoint import build
from scalerlt.models.config import OuroConfig
from scalerlt.models.tokenizer import WordTokenizer
from scalerlt.records.samples import Sample, SamplesHeader, write_samples
from scalerlt.rollout.native import NativeEngine
from scalerlt.rollout.request import Request, Response
from scalerlt.schema.fields import resolve_path
from scalerlt.tasks.arithmetic import arithmetic
from scalerlt.tasks.prompt import Prompt

PROMPTS = 16
GROUP_SIZE = 16
SEED = 0
LENGTHS = (8, 32, 16, 27, 4, 30, 12, 24)
"""Response lengths, taken in turn: ragged, as real ones are."""


def record() -> tuple[SamplesHeader, list[Sample]]:
    """Generate the samples; the same torch build on the same kind of processor generates the same ones."""
    torch.set_num_threads(1)
    values = yaml.safe_load(resolve_path("pkg://scalerlt/conf/model/tiny_ouro.yaml").read_text(encoding="utf-8"))
    config = OuroConfig(**{name: values[name] for name in OuroConfig.__dataclass_fields__})
    model = build(config, dtype=torch.float32, device="cpu", seed=SEED)
    tokenizer, prompt = WordTokenizer.embedded(), Prompt()
    problems = arithmetic("train", "one_digit", SEED, PROMPTS)
    requests = [
        Request(
            request_id=problem.problem_id + f"#{number}",
            prompt_tokens=tuple(tokenizer.encode(prompt.render(problem.question))),
            max_new_tokens=LENGTHS[(index + number) % len(LENGTHS)],
            temperature=1.0,
            seed=index * GROUP_SIZE + number,
            ignore_eos=True,
        )
        for index, problem in enumerate(problems)
        for number in range(GROUP_SIZE)
    ]
    responses = NativeEngine(model, concurrency=64).generate(requests).responses
    samples = []
    for group, problem in enumerate(problems):
        members = slice(group * GROUP_SIZE, (group + 1) * GROUP_SIZE)
        pairs = list(zip(requests[members], responses[members], strict=True))
        mean = sum(probe_reward(response) for _, response in pairs) / GROUP_SIZE
        samples += [
            Sample(
                problem_id=problem.problem_id,
                prompt_group=group,
                prompt_tokens=list(request.prompt_tokens),
                response_tokens=list(response.tokens),
                logprobs=[round(logprob, 6) for logprob in response.logprobs],
                temperature=request.temperature,
                finish_reason=response.finish_reason,
                seed=response.seed,
                weight_version=0,
                reward=probe_reward(response),
                advantage=probe_reward(response) - mean,
                text=tokenizer.decode(response.tokens),
            )
            for request, response in pairs
        ]
    header = SamplesHeader(
        model="tiny_ouro, random weights, init_seed 0, fp32",
        vocab_size=config.vocab_size,
        made_by="python -m scalerlt.experiments.record_rollouts; native engine, temperature 1; reward is a probe "
        "(1 where the sum of the response's token ids is even), advantage is reward less its group's mean",
    )
    return header, samples


def probe_reward(response: Response) -> float:
    """1 where the sum of the token ids is even, else 0."""
    return float(sum(response.tokens) % 2 == 0)


def main(arguments: list[str]) -> int:
    """Write the file named on the command line."""
    if len(arguments) != 1:
        raise UserError("usage: python -m scalerlt.experiments.record_rollouts FILE")
    header, samples = record()
    write_samples(Path(arguments[0]), header, samples)
    print(f"{arguments[0]}: {len(samples)} responses to {PROMPTS} prompts")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
