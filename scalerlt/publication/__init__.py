"""Publication: how a learner's weights reach the rollout engine."""
