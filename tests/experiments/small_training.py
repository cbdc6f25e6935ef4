"""A training run of `gsm8k_reward` that takes seconds, and has something to learn."""

from scalerlt.experiments.answers import Answer

SMALL = {
    "model.weights": None,
    "batch.prompts_per_step": 3,
    "batch.group_size": 4,
    "batch.minibatch_responses": 6,
    "batch.rollout_concurrency": 12,
    "rollout.max_new_tokens": 6,
    "rollout.ignore_eos": False,
    "experiment.steps": 4,
    "experiment.evaluate_every": 2,
    "experiment.eval_problems": 5,
    "experiment.save_every": 1,
    "optimizer.learning_rate": 1e-2,
}


def reward_of_the_text(answer: Answer) -> float:
    """Random weights answer nothing right: in the place of `Answer.reward` a property of the text."""
    return float(sum(answer.response.tokens) % 2 == 0)
