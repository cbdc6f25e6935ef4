"""The phases of a step, in the order in which the parts of a metric are listed; others follow by name."""

PHASES = (
    *("load", "generate", "prefill", "decode", "reward", "logprob", "log_prob", "old_log_prob", "replay", "forward"),
    *("backward", "optimizer", "update_actor", "publish", "depth_match", "other"),
)


def in_order(parts: set[str]) -> list[str]:
    """The parts of a metric as they are listed."""
    return sorted(parts, key=lambda part: (PHASES.index(part) if part in PHASES else len(PHASES), part))
