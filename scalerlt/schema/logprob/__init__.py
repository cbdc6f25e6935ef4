"""Config group `logprob`: how the learner evaluates the sampled tokens."""

from scalerlt.schema.registry import config_group


@config_group("logprob")
class Logprob:
    """`dense`: every token at full depth, teacher-forced in one causal pass."""

    name: str
