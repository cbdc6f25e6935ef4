"""What memory a cell will need, from its configuration alone, phase by phase, against what its device has.

Closed forms over the shapes of `scalerlt.models.ouro` and of the learner's readout. What autograd keeps of a layer, of
the final norm and of the readout is counted tensor by tensor; the rest are upper bounds. They are of tensors alone: an
interpreter with torch takes some 0.3 to 0.5 GB beside them, a CUDA context about 0.5 GB, and allocators round up.

How far off, over the cells of the quickstart (tiny model, CPU): see `docs/planning.md`.
"""

from collections.abc import Sequence

from scalerlt.planning.capacity import REFERENCE, Capacity, MemoryPlan
from scalerlt.planning.workload import (
    SHARED_PREFIX,
    Sequences,
    gate_parameters,
    microbatches,
    parameters,
    rollout_sequences,
    training_sequences,
)
from scalerlt.schema.algorithm.grpo import Grpo
from scalerlt.schema.algorithm.rltt import Rltt
from scalerlt.schema.cell import Cell
from scalerlt.schema.checkpoint.auto import Auto
from scalerlt.schema.checkpoint.segments import Segments
from scalerlt.schema.experiment.gsm8k_reward import Gsm8kReward
from scalerlt.schema.fields import parse_bytes
from scalerlt.schema.model import Model
from scalerlt.schema.optimizer.sgd import Sgd
from scalerlt.schema.rollout.other_engines import pool_bytes

BYTES = {"fp64": 8, "fp32": 4, "bf16": 2, "fp16": 2}
"""Of one number in each precision that torch computes in."""
INDEX = 8
AUTO = ("none", "packed_shared")
"""Of the schedules among which `checkpoint=auto` chooses those that keep most."""


def memory_plan(cell: Cell, capacity: Capacity) -> MemoryPlan | None:
    """The memory plan of a cell; None of an experiment or a precision that is not known here."""
    if cell.precision.name not in BYTES:
        return None
    number = BYTES[cell.precision.name]
    rollout = rollout_sequences(cell)
    match cell.experiment.name:
        case "rollout_throughput":
            slots = min(cell.batch.rollout_concurrency, len(rollout.lengths))
            phases = {**_rollout(cell, rollout, slots, number), REFERENCE: _forward_fp64(cell, rollout)}
        case "actor_update":
            training = training_sequences(cell)
            phases = {
                **_update(cell, training, number),
                **_engine_replay(cell, training, number),
                REFERENCE: _update_fp64(cell, training),
            }
        case "gsm8k_eval":
            phases = _rollout(cell, rollout, cell.batch.rollout_concurrency, number)
        case "gsm8k_reward":
            phases = _reward(cell, rollout, number)
        case _:
            return None
    known = cell.experiment.name == "actor_update" or rollout.known
    return MemoryPlan(phases, not known, *capacity.of(cell.device))


def parameter_bytes(cell: Cell) -> int:
    """Of the weights in the cell's precision."""
    return parameters(cell.model) * BYTES[cell.precision.name]


def optimizer_bytes(cell: Cell) -> int:
    """Of the moments, and of fp32 master weights below fp32; the exit gate has neither."""
    number = BYTES[cell.precision.name]
    trained, master = _trained(cell.model), max(number, 4)
    states = (1 if cell.optimizer.momentum else 0) if isinstance(cell.optimizer, Sgd) else 2
    return trained * master * (states + (number < 4))


def kv_cache_bytes(model: Model, slots: int, positions: int, number: int, *, shared: bool = False) -> int:
    """Of the pool: keys and values of every layer, and of every loop unless they share theirs, for `slots` sequences of
    up to `positions` tokens."""
    planes = model.num_hidden_layers * (1 if shared else model.total_ut_steps)
    return 2 * planes * slots * positions * model.num_key_value_heads * model.head_dim * number


def saved_bytes(cell: Cell, *, number: int | None = None, checkpoint: str | None = None) -> int:
    """What autograd keeps of the largest micro-batch, the readout's share included: `saved_bytes` of a record."""
    schedule = checkpoint or cell.checkpoint.name
    if schedule == "auto":
        return max(saved_bytes(cell, number=number, checkpoint=chosen) for chosen in AUTO)
    batches = microbatches(cell, training_sequences(cell).lengths, shared=schedule in SHARED_PREFIX)
    number = number or BYTES[cell.precision.name]
    return max(_kept(cell, batch, number, schedule) + _kept_readout(cell, batch, number) for batch in batches)


def _rollout(cell: Cell, sequences: Sequences, slots: int, number: int) -> dict[str, dict[str, int]]:
    """Prompts, with the K/V pool beside them, and the readout of all slots."""
    model = cell.model
    longest = max(prompt for prompt, _ in sequences.lengths)
    positions = max(prompt + response - 1 for prompt, response in sequences.lengths)
    engine = cell.rollout.engine
    limit = engine.kv_cache_tokens
    if limit is not None:
        slots = min(slots, max(1, limit // max(1, positions)))
    shared = cell.rollout.skipped_kv == "shared_kv"
    standing = {
        "weights": parameters(model) * number,
        "kv_cache": kv_cache_bytes(model, slots, positions, number, shared=shared),
    }
    if engine.name == "vllm":
        length = engine.max_model_len or model.max_position_embeddings
        standing["vllm_weights"] = standing["weights"]
        standing["kv_cache"] = pool_bytes(slots, length, limit, kv_cache_bytes(model, 1, 1, number))
    return {
        "prefill": {**standing, "activations": slots * longest * _unkept_row(model, number)},
        "sampling": {**standing, "logits": slots * model.vocab_size * (number + 3 * max(number, 4))},
    }


def _engine_replay(cell: Cell, sequences: Sequences, number: int) -> dict[str, dict[str, int]]:
    """The rollout's steps on the learner's weights, before an optimizer step of recorded rollouts."""
    if cell.logprob.replay != "engine":
        return {}
    longest = cell.rollout.max_new_tokens
    asked = tuple((prompt, max(response, longest)) for prompt, response in sequences.lengths)
    parts = _rollout(cell, Sequences(asked, sequences.known), cell.batch.rollout_concurrency, number)
    return {f"replay_{name}": {**_learner(cell, number), **part} for name, part in parts.items()}


def _update(cell: Cell, sequences: Sequences, number: int) -> dict[str, dict[str, int]]:
    """A learner step; of `checkpoint=auto` the most that it may take, but no more than its memory budget, which is held
    against gradients and all that is not standing."""
    if not isinstance(cell.checkpoint, Auto):
        return _update_under(cell.checkpoint.name, cell, sequences, number)
    plans = [_update_under(schedule, cell, sequences, number) for schedule in AUTO]
    plan = max(plans, key=lambda plan: max(sum(held.values()) for held in plan.values()))
    if cell.checkpoint.memory_budget is None:
        return plan
    budget, learner = parse_bytes(cell.checkpoint.memory_budget), _learner(cell, number)
    within = sum(learner.values()) + budget
    return {
        phase: held if sum(held.values()) <= within else {**learner, "memory_budget": budget}
        for phase, held in plan.items()
    }


def _update_under(schedule: str, cell: Cell, sequences: Sequences, number: int) -> dict[str, dict[str, int]]:
    """The end of the forward pass, where the readout stands, and the backward pass through the layers."""
    batches = list(microbatches(cell, sequences.lengths, shared=schedule in SHARED_PREFIX))
    standing = {
        **_learner(cell, number),
        "gradients": _trained(cell.model) * max(number, 4),  # of the masters, from the passes before
        "activations": max(_kept(cell, batch, number, schedule) for batch in batches),
    }
    narrow = _trained(cell.model) * number if number < 4 else 0  # of the parameters, until the masters take them over
    again = max(_recomputed(cell, batch, number, schedule) for batch in batches)
    return {
        "readout": {**standing, "logits": max(_readout(cell, batch, number) for batch in batches)},
        "layers": {**standing, "gradients": standing["gradients"] + narrow, "recomputed": again},
    }


def _reward(cell: Cell, rollout: Sequences, number: int) -> dict[str, dict[str, int]]:
    """A training step: beside the learner stand the policies that its engines are given, and the reference policy."""
    reward = cell.experiment
    assert isinstance(reward, Gsm8kReward)
    served = BYTES[cell.rollout.precision or cell.precision.name]
    kept = {
        **_learner(cell, number),
        **_reference_policy(cell, number),
        "served_policies": (min(reward.lag, reward.steps) + 1) * parameters(cell.model) * served,
    }
    generated = _rollout(cell, rollout, cell.batch.rollout_concurrency, served)
    for held in generated.values():
        del held["weights"]  # among the served policies
    parts = generated | _engine_replay(cell, rollout, number) | _update(cell, rollout, number)
    phases = {name: {**kept, **part} for name, part in parts.items()}
    if reward.grad_bias_every:
        held = _update_fp64(cell, rollout)
        phases[REFERENCE] = {**kept, "fp64_weights": 2 * held.pop("weights"), **held}
    return phases


def _learner(cell: Cell, number: int) -> dict[str, int]:
    return {"weights": parameters(cell.model) * number, "optimizer": optimizer_bytes(cell)}


def _reference_policy(cell: Cell, number: int) -> dict[str, int]:
    """The frozen initial policy, where the objective has one."""
    wanted = isinstance(cell.algorithm, Rltt) or (isinstance(cell.algorithm, Grpo) and cell.algorithm.kl_coef > 0)
    if wanted:
        return {"reference_policy": parameters(cell.model) * number}
    return {}


def _forward_fp64(cell: Cell, sequences: Sequences) -> dict[str, int]:
    """The learner's log-probs in fp64, without gradients."""
    batches = list(microbatches(cell, sequences.lengths))
    return {
        "weights": parameters(cell.model) * 8,
        "activations": max(_rows(batch) * _unkept_row(cell.model, 8) for batch in batches),
        "logits": max(_readout(cell, batch, 8, "full") for batch in batches),
    }


def _update_fp64(cell: Cell, sequences: Sequences) -> dict[str, int]:
    """The fp64 gradient without checkpointing, and beside it what two schedules' updates are compared by."""
    batches = list(microbatches(cell, sequences.lengths))
    trained, master = _trained(cell.model), max(BYTES[cell.precision.name], 4)
    return {
        "weights": parameters(cell.model) * 8,
        "gradients": trained * 8 * 2,
        "compared": 2 * 4 * trained * master,
        "activations": max(_kept(cell, batch, 8, "none") for batch in batches),
        "logits": max(_readout(cell, batch, 8, "full") for batch in batches),
    }


def _kept(cell: Cell, batch: Sequence[tuple[int, int]], number: int, schedule: str) -> int:
    """What autograd keeps of the loops, from the token ids to the last loop's hidden states; of shared prefixes, of a
    wave and its prompt together, with the boundary between them and its adjoints."""
    if schedule not in SHARED_PREFIX:
        return _graph(cell, batch, number, schedule)
    rows, wave = batch[0][0], _wave_rows(batch)
    boundary = _boundary(cell.model, rows, number)
    match schedule:
        case "prefix":
            return _graph(cell, [(rows, 1)], number) + _graph(cell, [(wave, 1)], number) + boundary
        case "packed_shared":
            return _graph(cell, [(rows + wave, 1)], number)
        case "streamed":
            last = cell.model.total_ut_steps * (rows - 1) * cell.model.hidden_size * number
            waves = 2 * (boundary - last) + _graph(cell, [(wave, 1)], number)
            return max(waves, boundary + _graph(cell, [(rows, 1)], number))
        case _:
            return 2 * boundary + (rows + _labels(batch) + wave) * INDEX


def _boundary(model: Model, rows: int, number: int) -> int:
    """K and V of every loop and layer, and the states of every loop, of a prompt."""
    width = 2 * model.num_hidden_layers * model.num_key_value_heads * model.head_dim + model.hidden_size
    return model.total_ut_steps * rows * width * number


def _graph(cell: Cell, batch: Sequence[tuple[int, int]], number: int, schedule: str = "none") -> int:
    """What autograd keeps of packed sequences."""
    model, rows = cell.model, _rows(batch)
    loop_interval, layer_interval, chunk = _segments(cell, schedule)
    if loop_interval:
        kept = -(-model.total_ut_steps // loop_interval) * rows * model.hidden_size * number
    else:
        kept = model.total_ut_steps * _kept_loop(model, batch, number, layer_interval, chunk)
    tables, places = 2 * rows * model.head_dim * number, rows * INDEX if _padded(batch) > rows else 0
    return kept + rows * INDEX + tables + places


def _recomputed(cell: Cell, batch: Sequence[tuple[int, int]], number: int, schedule: str) -> int:
    """The inside of the region that is computed again while its backward pass runs, and of those within it."""
    if schedule == "joint":
        wave = _graph(cell, [(_wave_rows(batch), 1)], number) + _kept_readout(cell, batch, number)
        return max(wave, _graph(cell, [(batch[0][0], 1)], number))
    model = cell.model
    loop_interval, layer_interval, chunk = _segments(cell, schedule)
    again = 0
    if loop_interval:
        loops = min(loop_interval, model.total_ut_steps)
        again += loops * _kept_loop(model, batch, number, layer_interval, chunk)
    if layer_interval:
        again += min(layer_interval, model.num_hidden_layers) * _layer(model, batch, number, chunk)
    if chunk:
        again += _layer(model, batch, number, 0) * min(chunk, _width(batch)) // _width(batch)
    return again


def _segments(cell: Cell, schedule: str) -> tuple[int, int, int]:
    """Loops, layers and positions of the segments of a schedule; 0: there are none."""
    if schedule == "segments" and isinstance(cell.checkpoint, Segments):
        return cell.checkpoint.loop_interval, cell.checkpoint.layer_interval, cell.checkpoint.query_chunk
    return {"loop": (1, 0, 0), "layer": (0, 1, 0)}.get(schedule, (0, 0, 0))


def _kept_loop(model: Model, batch: Sequence[tuple[int, int]], number: int, layer_interval: int, chunk: int) -> int:
    """Bytes that autograd keeps of one loop: of its layers, or of the segments of them, and of the final norm."""
    rows, internal = _rows(batch), max(number, 4)
    if layer_interval:
        layers = -(-model.num_hidden_layers // layer_interval) * rows * model.hidden_size * number
    else:
        layers = model.num_hidden_layers * _layer(model, batch, number, chunk)
    return layers + rows * (model.hidden_size * (internal + number) + internal)


def _layer(model: Model, batch: Sequence[tuple[int, int]], number: int, chunk: int) -> int:
    """Bytes that autograd keeps of one layer.

    Ten vectors of the hidden size (each norm's input and normalised output, the weighted output of the two that feed
    projections), four of the MLP's inner size, the rotated queries, keys, values and attention's output, and softmax's
    and the norms' statistics. The four norm inputs are kept in the internal precision. Attention pads sequences of
    unlike lengths, and its output is kept once more without padding. Of chunks of queries nothing behind the
    projections is kept but their own inputs, and which rows they are.
    """
    rows, padded, internal = _rows(batch), _padded(batch), max(number, 4)
    queries, keys = model.num_attention_heads * model.head_dim, model.num_key_value_heads * model.head_dim
    if chunk:
        norm = model.hidden_size * (internal + 2 * number) + internal
        return rows * (norm + (model.hidden_size + queries + 2 * keys) * number + 2 * INDEX)
    vectors = (6 * model.hidden_size + 4 * model.intermediate_size) * number
    norms = (4 * model.hidden_size + 4) * internal
    attention = (2 * queries + 2 * keys) * number + model.num_attention_heads * internal
    return rows * (vectors + norms) + padded * attention + (rows * queries * number if padded > rows else 0)


def _unkept_row(model: Model, number: int) -> int:
    """Bytes of one row at one time where no graph is kept: the loops' states, and one layer's widest moment."""
    return ((model.total_ut_steps + 3) * model.hidden_size + 3 * model.intermediate_size) * number


def _kept_readout(cell: Cell, batch: Sequence[tuple[int, int]], number: int, readout: str | None = None) -> int:
    """Per label the hidden state, the log-softmax over the vocabulary, or of tiles two numbers, and where they come
    from."""
    model, internal = cell.model, max(number, 4)
    readouts = model.total_ut_steps if isinstance(cell.algorithm, Rltt) else 1
    normalised = 2 if (readout or cell.checkpoint.readout) == "tiled" else model.vocab_size
    return readouts * _labels(batch) * (model.hidden_size * number + normalised * internal + 2 * INDEX)


def _readout(cell: Cell, batch: Sequence[tuple[int, int]], number: int, readout: str | None = None) -> int:
    """What is kept, and beside it, while log-probs and their gradient are made, two matrices over the vocabulary; or of
    tiles one of a tile, below fp32 two more in the narrower format, and the gradient of the hidden states."""
    model, labels, internal = cell.model, _labels(batch), max(number, 4)
    kept = _kept_readout(cell, batch, number, readout)
    if (readout or cell.checkpoint.readout) == "full":
        return kept + 2 * labels * model.vocab_size * internal
    tile = min(cell.checkpoint.readout_tile, model.vocab_size) * (internal + (2 * number if number < internal else 0))
    return kept + labels * (tile + model.hidden_size * (internal + (number if number < internal else 0)))


def _trained(model: Model) -> int:
    """Weights that learn: all but the exit gate."""
    return parameters(model) - gate_parameters(model)


def _width(batch: Sequence[tuple[int, int]]) -> int:
    return max((prompt + response - 1 for prompt, response in batch), default=0)


def _rows(batch: Sequence[tuple[int, int]]) -> int:
    return sum(prompt + response - 1 for prompt, response in batch)


def _wave_rows(batch: Sequence[tuple[int, int]]) -> int:
    """Of the responses alone, which attention to a shared prefix keeps without padding."""
    return sum(response - 1 for _, response in batch if response)


def _padded(batch: Sequence[tuple[int, int]]) -> int:
    return len(batch) * _width(batch)


def _labels(batch: Sequence[tuple[int, int]]) -> int:
    return sum(response for _, response in batch)
