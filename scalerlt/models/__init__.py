"""The looped transformer, its checkpoints and its tokenizers."""
