"""`checkpoint=packed_shared`: a prompt and its responses in one pass, as if they were one sequence with a mask."""

from collections.abc import Iterator, Sequence
from functools import partial

import torch
from torch import Tensor

from scalerlt.learner.batching import TrainingResponse, microbatches
from scalerlt.learner.checkpoint.schedule import Schedule
from scalerlt.learner.layout import Estimator, Layout, Pass, StepRun
from scalerlt.learner.logprobs import Evaluated, PassKind, composed, hybrid, one_pass, run_and_read_depths
from scalerlt.learner.prefix.attention import packed_attention
from scalerlt.learner.prefix.schedules import prompt_groups
from scalerlt.learner.prefix.wave import Wave, following, positions_of, read_out, row_depths, wave_logprobs, wave_of
from scalerlt.learner.rows import places_of, run_loops


class PackedPrefix(Layout):
    """The rows of a prompt and of its responses go through every layer together, in half as many, larger products.

    Autograd keeps all of them until the one backward pass. Where a prompt's responses do not fit into a pass, the
    prompt is run again with the rest of them.
    """

    def passes(self, responses: Sequence[TrainingResponse], tokens: int, run: StepRun) -> Iterator[Pass]:
        """Of one prompt after the other; `tokens` bounds those of the prompt and the padded responses together."""
        model = run.estimator.model
        for prompt, group in prompt_groups(responses):
            lengths = [len(responses[index].response_tokens) for index in group]
            for picked in microbatches(lengths, max(tokens - len(prompt), 1)):
                chosen = [group[index] for index in picked]
                wave = wave_of([responses[index] for index in chosen], model.config.total_ut_steps, model.device)
                runs = run.estimator.runs([responses[index] for index in chosen])
                run.rows += len(prompt) + runs * len(wave.inputs)
                run.embeddings += 1
                yield Pass(
                    picked=chosen,
                    padded_tokens=wave.padding,
                    evaluate=partial(_evaluate, run, wave, torch.tensor(prompt, device=model.device)),
                )


def _evaluate(run: StepRun, wave: Wave, prompt: Tensor) -> Evaluated:
    estimator = run.estimator
    boundary: list[Tensor] = []

    def evaluate(kind: PassKind) -> Evaluated:
        return packed_logprobs(estimator, kind, wave, run.schedule, prompt, boundary)

    if estimator.kind != "hybrid" or wave.replay_logprobs is not None or one_pass(estimator.kv):
        return composed(estimator.kind, estimator.kv, wave.replay_logprobs, evaluate)
    dense = evaluate("dense")
    with torch.no_grad():  # the prompt runs all loops in either, so it is not run again
        replay = wave_logprobs(estimator, "replay", wave, run.schedule, wave.inputs, wave.labels, *boundary)
    return Evaluated(hybrid(replay.logprobs, dense.logprobs))


def packed_logprobs(
    estimator: Estimator, kind: PassKind, wave: Wave, schedule: Schedule, prompt: Tensor, boundary: list[Tensor]
) -> Evaluated:
    """Log-probs of the wave's tokens after the prompt [P] int64, as `wave_logprobs` gives them; `boundary` is filled
    with what that takes of a prompt, without gradient."""
    model, size, device = estimator.model, len(prompt), prompt.device
    places = places_of(following(wave), device) if len(wave.inputs) else None

    def attend(loop: int, layer: int, rows: Tensor | None, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        boundary.extend((k[:size].detach(), v[:size].detach()))
        return packed_attention(q, k, v, size, places, None if rows is None else rows[size:] - size)

    positions = torch.cat((torch.arange(size, device=device), positions_of(wave, device)))
    run, read = run_and_read_depths(estimator.kv, row_depths(wave, kind, device))
    if run is not None:
        run = torch.cat((run.new_full((size,), model.config.total_ut_steps), run))
    states = run_loops(model, schedule, torch.cat((prompt, wave.inputs)), positions, run, attend)
    boundary.extend(state[size - 1 : size].detach() for state in states)
    return read_out(estimator, kind, wave, [state[size - 1 :] for state in states], wave.labels, read)
