"""The semantics of fused kernels are torch's formulas, forward and backward."""

import math

import torch
from torch.nn import functional

from pytest_trainsafe.arithmetic import Doubles
from pytest_trainsafe.judges.refine.evaluate.kernels import semantics

N = Doubles()


def drawn(*shape, seed=0):
    return torch.randn(
        shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed + sum(shape))
    )


def kernel(name, *args, **options):
    rule = semantics()[name].rule
    assert rule is not None
    return rule(N, *args, **options)


def test_apex_layer_norm_is_torchs_with_its_gradients():
    x, weight, bias = (
        each.requires_grad_() for each in (drawn(3, 2, 4), drawn(4), drawn(4, 1)[:, 0])
    )
    expected = functional.layer_norm(x, [4], weight, bias, 1e-5)
    y, mean, rstd = kernel("apex.fused_layer_norm_affine_fwd", x, weight, bias, [4], 1e-5)
    assert torch.allclose(y, expected)
    assert mean.shape == rstd.shape == (6,)
    grad = drawn(3, 2, 4, seed=9)
    expected_grads = torch.autograd.grad(expected, (x, weight, bias), grad)
    found = kernel("apex.fused_layer_norm_affine_bwd", grad, mean, rstd, x, [4], weight, bias, 1e-5)
    assert all(torch.allclose(a, b) for a, b in zip(found, expected_grads, strict=True))


def test_vllm_norms_and_gates_are_torchs():
    x, residual, weight = drawn(3, 4), drawn(3, 4, seed=1), drawn(4)
    expected = functional.rms_norm(x, [4], weight, 1e-6)
    assert torch.allclose(kernel("_C.rms_norm", x, x, weight, 1e-6)[0], expected)
    y, total = kernel("_C.fused_add_rms_norm", x, residual, weight, 1e-6)
    assert torch.allclose(total, x + residual)
    assert torch.allclose(y, functional.rms_norm(x + residual, [4], weight, 1e-6))
    (gated,) = kernel("_C.silu_and_mul", x, drawn(3, 8))
    gate, up = drawn(3, 8).chunk(2, -1)
    assert torch.allclose(gated, functional.silu(gate) * up)


def test_rotary_embedding_turns_pairs_by_the_angle_of_their_position():
    angles = drawn(5, 2)
    cache = torch.cat((angles.cos(), angles.sin()), -1)
    positions, query = torch.tensor([3, 0, 4]), drawn(3, 8)
    for neox in (True, False):
        turned, _ = kernel("_C.rotary_embedding", positions, query, query, 4, cache, neox)
        heads = query.reshape(3, 2, 4)
        real, imaginary = heads.chunk(2, -1) if neox else (heads[..., ::2], heads[..., 1::2])
        rotated = torch.complex(real, imaginary) * torch.exp(1j * angles[positions])[:, None]
        found = turned.reshape(3, 2, 4)
        pairs = found.chunk(2, -1) if neox else (found[..., ::2], found[..., 1::2])
        assert torch.allclose(torch.complex(*pairs), rotated)


def test_unified_attention_is_causal_and_shares_key_heads():
    q, k, v = drawn(5, 4, 2), drawn(5, 2, 2, seed=3), drawn(5, 2, 2, seed=4)
    (found,) = kernel("vllm.unified_attention_with_output", q, k, v, q, layer_name="layer")
    q, k, v = (each.transpose(0, 1)[None] for each in (q, k, v))
    expected = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    assert torch.allclose(found, expected[0].transpose(0, 1))


def test_dropout_keeps_every_element_with_its_scale():
    x = drawn(3, 4)
    kept, mask = kernel("aten.native_dropout", x, 0.25, True)
    assert torch.allclose(kept, x / 0.75)
    assert bool(mask.all())
    assert kernel("aten.native_dropout", x, 0.25, False)[0].equal(x)
    assert torch.allclose(kernel("aten.native_dropout_backward", x, mask, 1 / 0.75), x / 0.75)
    assert "aten.bernoulli" not in semantics()
    assert math.isclose(float(kernel("aten.native_dropout", x, 0.5, True)[0][0, 0] / x[0, 0]), 2)
