"""The cost formula against counts made by torch, and against what was measured."""

import json
from dataclasses import asdict

import pytest
import torch

from rlcd_core.extra import cost
from rlcd_core.extra.cost import QWEN3_06B, SMOLLM2_135M, Shape
from rlcd_core.extra.families.reference import PROTOCOL
from rlcd_core.records import results_dir
from tests.tiny_models import tiny_model

# Sizes that no two terms of a formula share.
SIZES = {
    "hidden_size": 40,
    "intermediate_size": 112,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


def model(kind: str, **fields):
    sizes = {**SIZES, **fields}
    if kind == "llama":
        sizes["head_dim"] = 16
    return tiny_model(kind, **sizes)


def saved_by_torch(body, prompts: int, tokens: int, half: bool) -> int:
    """Bytes of the distinct tensors that autograd keeps, parameters left out."""
    own = {p.untyped_storage().data_ptr() for p in body.parameters()}
    kept = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            # The tensor is held, so that no other can get its address.
            kept[storage.data_ptr()] = (storage.nbytes(), tensor)
        return tensor

    hooks = torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor)
    with hooks, torch.autocast("cpu", torch.bfloat16, enabled=half):
        body(input_ids=torch.ones(prompts, tokens, dtype=torch.long), use_cache=False)
    return sum(size for size, _ in kept.values())


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("kind", ["llama", "qwen3"])
@pytest.mark.parametrize("layers", [1, 3])
def test_saved_bytes_are_those_that_autograd_keeps(
    kind: str, layers: int, half: bool
) -> None:
    made = model(kind, num_hidden_layers=layers)
    shape = Shape.of(made.config)
    counted = saved_by_torch(made.model, 4, 48, half)
    # What is shared by all layers (positions) is left out of the formula.
    assert shape.saved_bytes(4 * 48, half) == pytest.approx(counted, rel=0.02)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_parameters_and_operations_are_those_that_torch_counts(
    kind: str, tied: bool
) -> None:
    from torch.utils.flop_counter import FlopCounterMode

    made = model(kind, num_hidden_layers=3, tie_word_embeddings=tied)
    shape = Shape.of(made.config)
    assert shape.parameters == sum(p.numel() for p in made.parameters())
    ids = torch.ones(4, 48, dtype=torch.long)
    with FlopCounterMode(display=False) as counter:
        hidden = made.model(input_ids=ids, use_cache=False).last_hidden_state
    # Torch counts the matrix products, not the attention kernel of the CPU: that is
    # what two products of 48 * 49 / 2 pairs cost, by head and layer.
    attention = 4 * 3 * 2 * 2 * (48 * 49 // 2) * shape.heads * shape.head_size
    assert shape.forward_flops(4, 48) == counter.get_total_flops() + attention
    with FlopCounterMode(display=False) as counter:
        hidden.sum().backward()
    backward = shape.step_flops(4, 48) - shape.forward_flops(4, 48)
    assert backward == counter.get_total_flops() + 2 * attention


VIEWS = (
    "view transpose expand t slice unsqueeze detach alias _unsafe_view select permute "
    "squeeze as_strided"
).split()


def test_operations_per_layer_are_those_that_torch_dispatches() -> None:
    from torch.utils._python_dispatch import TorchDispatchMode

    class Counter(TorchDispatchMode):
        count = 0

        def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
            name = operation._schema.name.split("::")[1]
            self.count += name not in VIEWS
            return operation(*args, **(kwargs or {}))

    counts = []
    for layers in (1, 2):
        body = model("qwen3", num_hidden_layers=layers).model
        ids = torch.ones(2, 16, dtype=torch.long)
        with Counter() as counter:
            with torch.autocast("cpu", torch.bfloat16):
                hidden = body(input_ids=ids, use_cache=False).last_hidden_state
            hidden.sum().backward()
        counts.append(counter.count)
    # Another version of torch may split an operation in two.
    assert counts[1] - counts[0] == pytest.approx(cost.OPERATIONS_PER_LAYER, rel=0.1)


def test_a_t4_holds_the_longest_prompts_of_the_protocol() -> None:
    p = PROTOCOL
    need = QWEN3_06B.training_bytes(p.micro_batch * p.max_tokens, half=True)["total"]
    assert need < 0.9 * cost.MACHINES[0].memory
    more = QWEN3_06B.training_bytes(2 * p.micro_batch * p.max_tokens, half=True)
    assert more["total"] > 0.9 * cost.MACHINES[0].memory


def test_published_sizes() -> None:
    # The manifest of qwen3 states its number of parameters.
    assert QWEN3_06B.parameters == 596_049_920
    assert SMOLLM2_135M.parameters == 134_515_008


def test_memory_by_hand() -> None:
    shape = Shape(1, 8, 16, 2, 1, 4, 100)
    # Matrices 8*8*2 + 8*4*2 + 3*8*16 = 576; norms 16 + 8; table 800.
    assert shape.parameters == 576 + 24 + 800
    parts = shape.training_bytes(tokens=10, half=False)
    assert parts["weights"] == parts["gradients"] == 4 * 1400
    assert parts["optimiser"] == 2 * 4 * 1400
    # Per token: norms 24 * 8 + 8, attention 4 * (16 + 8) + 8, MLP 16 * 16; last norm.
    saved = 10 * (200 + 104 + 256) + 10 * (64 + 12)
    assert parts["transient"] == saved + 3200
    assert parts["total"] == sum(v for k, v in parts.items() if k != "total")
    # With few tokens the optimiser's work space is the larger one.
    assert shape.training_bytes(tokens=1, half=False)["transient"] == 4 * 1400


def test_time_by_hand() -> None:
    shape = Shape(2, 8, 16, 2, 1, 4, 100)
    quick = cost.Machine("quick", peak=1e9, bandwidth=1e12, memory=1e9, launch=0.0)
    flops = 3 * 2 * (2 * 576 * 5 + 4 * 8 * 15)
    assert shape.step_flops(1, 5) == flops
    got = cost.step_seconds(shape, quick, 8, 5, micro_batch=4, utilisation=0.5)
    assert got == pytest.approx(8 * flops / 5e8 + shape.optimiser_traffic() / 1e12)
    # Nine prompts in micro-batches of four take three passes.
    slow = cost.Machine("slow", peak=1e30, bandwidth=1e30, memory=1e9, launch=1.0)
    got = cost.step_seconds(shape, slow, 9, 5, micro_batch=4, utilisation=0.5)
    assert got == pytest.approx(3 * 2 * cost.OPERATIONS_PER_LAYER)
    run = cost.run_seconds(
        shape,
        quick,
        steps=7,
        prompts=8,
        tokens=5,
        micro_batch=4,
        read=30,
        utilisation=1,
    )
    step = cost.step_seconds(shape, quick, 8, 5, 4, 1)
    assert run == pytest.approx(7 * step + 30 * flops / 3 / 1e9)


def test_predictions_by_hand() -> None:
    shape = Shape(2, 8, 16, 2, 1, 4, 100)
    update = shape.optimiser_traffic() / 1e6
    rows = {
        "base": {"prompts": 2, "tokens": 5, "seconds": update + 1.0, "bytes": 1e6},
        "more": {"prompts": 4, "tokens": 5, "seconds": update + 4.0, "bytes": 1e6},
    }
    told = {"peak": 1e6, "copy": 1e6, "shape": asdict(shape), "measured": rows}
    found = cost.predicted(told)
    assert found["base"]["time"] == pytest.approx(0.0)
    assert found["base"]["utilisation"] == pytest.approx(shape.step_flops(2, 5) / 1e6)
    # Twice the prompts take twice the products' second, and were said to take four.
    assert found["more"]["time"] == pytest.approx((update + 2) / (update + 4) - 1)
    total = shape.training_bytes(20, half=False)["total"]
    assert found["more"]["memory"] == pytest.approx(total / 1e6 - 1)


def test_the_formula_is_within_a_fifth_of_what_was_measured() -> None:
    measured = json.loads((results_dir() / "cost.json").read_text())
    assert Shape(**measured["shape"]) == SMOLLM2_135M
    found = cost.predicted(measured)
    assert len(found) >= 4
    sizes = {(r["prompts"], r["tokens"]) for r in measured["measured"].values()}
    assert len({p for p, _ in sizes}) > 1 and len({t for _, t in sizes}) > 1
    for name, row in found.items():
        assert abs(row["time"]) < 0.2, name
        assert abs(row["memory"]) < 0.2, name
        assert 0 < row["utilisation"] < 1
