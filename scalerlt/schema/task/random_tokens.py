"""`task=random_tokens`: prompts of a fixed length for fixed-work throughput."""

from scalerlt.schema.fields import NonNegativeInt, PositiveInt
from scalerlt.schema.registry import config_group
from scalerlt.schema.task import RecordedTask


@config_group("task", "random_tokens")
class RandomTokens(RecordedTask):
    """Uniform random token ids: no text, no answer."""

    prompt_length: PositiveInt
    problem_seed: NonNegativeInt
