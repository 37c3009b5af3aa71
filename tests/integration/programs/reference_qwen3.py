"""Qwen3 and its training step written again in plain fp64 torch: what the engine must match."""

import math
from collections.abc import Mapping, Sequence

import torch
from torch.nn import functional

State = dict[str, torch.Tensor]


def state_of(tensors: Mapping[str, torch.Tensor]) -> State:
    return {name: t.double().requires_grad_(True) for name, t in tensors.items()}


def rms(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * weight


def rotate(x: torch.Tensor) -> torch.Tensor:
    """[B, L, N, H]: pairs (i, i + H/2) turned by position / 1e6^(2i/H)."""
    length, half = x.shape[1], x.shape[3] // 2
    rate = 1e6 ** (-torch.arange(half, dtype=torch.float64) / half)
    angle = torch.arange(length, dtype=torch.float64)[:, None] * rate
    cos, sin = angle.cos()[:, None, :], angle.sin()[:, None, :]
    a, b = x[..., :half], x[..., half:]
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


def logits(
    p: State, tokens: torch.Tensor, *, heads: int, kv_heads: int, layers: int
) -> torch.Tensor:
    h = p["tok_embeddings.weight"][tokens]
    batch, length = tokens.shape
    mask = torch.ones(length, length).tril().bool()
    for i in range(layers):
        at = f"layers.{i}.attention"
        x = rms(h, p[f"layers.{i}.attention_norm.weight"])
        q = (x @ p[f"{at}.qkv_linear.wq.weight"].T).view(batch, length, heads, -1)
        k = (x @ p[f"{at}.qkv_linear.wk.weight"].T).view(batch, length, kv_heads, -1)
        v = (x @ p[f"{at}.qkv_linear.wv.weight"].T).view(batch, length, kv_heads, -1)
        q, k = rotate(rms(q, p[f"{at}.q_norm.weight"])), rotate(rms(k, p[f"{at}.k_norm.weight"]))
        k, v = (t.repeat_interleave(heads // kv_heads, dim=2) for t in (k, v))
        score = torch.einsum("blnh,bmnh->bnlm", q, k) / math.sqrt(q.shape[-1])
        weight = score.masked_fill(~mask, -math.inf).softmax(-1)
        out = torch.einsum("bnlm,bmnh->blnh", weight, v).reshape(batch, length, -1)
        h = h + out @ p[f"{at}.wo.weight"].T
        x = rms(h, p[f"layers.{i}.ffn_norm.weight"])
        ff = f"layers.{i}.feed_forward"
        gate = functional.silu(x @ p[f"{ff}.w1.weight"].T) * (x @ p[f"{ff}.w3.weight"].T)
        h = h + gate @ p[f"{ff}.w2.weight"].T
    head = p.get("lm_head.weight", p["tok_embeddings.weight"])
    return rms(h, p["norm.weight"]) @ head.T


def loss_sum(p: State, rows: torch.Tensor, **shape: int) -> torch.Tensor:
    """Summed over the tokens of `rows` [n, L + 1]."""
    out = logits(p, rows[:, :-1], **shape)
    return functional.cross_entropy(out.flatten(0, 1), rows[:, 1:].flatten(), reduction="sum")


def train(
    p: State,
    batches: Sequence[torch.Tensor],
    rates: Sequence[float],
    *,
    betas: tuple[float, float],
    weight_decay: float,
    clip: float,
    **shape: int,
) -> list[float]:
    """AdamW on each batch's mean loss, gradients clipped to a global norm; the mean losses."""
    first = {n: torch.zeros_like(t) for n, t in p.items()}
    second = {n: torch.zeros_like(t) for n, t in p.items()}
    losses = []
    for step, (rows, lr) in enumerate(zip(batches, rates, strict=True), start=1):
        loss = loss_sum(p, rows, **shape) / rows[:, 1:].numel()
        losses.append(float(loss.detach()))
        grads = dict(zip(p, torch.autograd.grad(loss, list(p.values())), strict=True))
        norm = math.sqrt(sum(float(g.square().sum()) for g in grads.values()))
        scale = min(1.0, clip / (norm + 1e-6))
        with torch.no_grad():
            for n, t in p.items():
                g = grads[n] * scale
                first[n] = betas[0] * first[n] + (1 - betas[0]) * g
                second[n] = betas[1] * second[n] + (1 - betas[1]) * g.square()
                t *= 1 - lr * weight_decay
                root = (second[n] / (1 - betas[1] ** step)).sqrt() + 1e-8
                t -= lr * first[n] / (1 - betas[0] ** step) / root
    return losses
