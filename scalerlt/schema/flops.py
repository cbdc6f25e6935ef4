"""Floating-point operations of a looped transformer's forward pass, from shapes alone.

Two for each weight and row that goes through it, four for each query, key and channel of attention (a product for the
score, one for the value). Norms, rotations, softmax and the exit gate are left out.
"""

from scalerlt.schema.model import Model


def layer_weights(model: Model) -> int:
    """Weights of the matrices of one layer."""
    queries = model.num_attention_heads * model.head_dim
    keys = model.num_key_value_heads * model.head_dim
    return model.hidden_size * (2 * queries + 2 * keys + 3 * model.intermediate_size)


def loops_flops(model: Model, *, rows: int, pairs: int) -> int:
    """All K loops over `rows` tokens, whose queries attend to `pairs` keys together."""
    width = model.num_attention_heads * model.head_dim
    return 2 * model.total_ut_steps * model.num_hidden_layers * (rows * layer_weights(model) + 2 * pairs * width)


def readout_flops(model: Model, labels: int) -> int:
    """Logits over the vocabulary for `labels` hidden states."""
    return 2 * labels * model.hidden_size * model.vocab_size


def causal_pairs(rows: int) -> int:
    """Queries with the keys that they attend to, of a sequence: each row with itself and the rows before it."""
    return rows * (rows + 1) // 2
