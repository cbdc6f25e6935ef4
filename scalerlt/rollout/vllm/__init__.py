"""vLLM: a plugin that teaches it Ouro models, and the rollout engine on top."""
