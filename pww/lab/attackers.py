"""What attackers send instead of what they found. They are the last workers.

Source: Xie et al., arXiv 1903.03936 (inner product), Blanchard et al., arXiv 1703.02757 (noise).
"""

from typing import assert_never

import torch

from pww.config.schema.lab import AnyAttack


def attack_(rows: torch.Tensor, attack: AnyAttack, *, generator: torch.Generator) -> None:
    """Overwrites the attackers' rows of (M, n).

    `scale` is how many times as long as a vector of the round's own: of `noise` (on average over
    its draws) and `sign_flip` what the attacker would have sent, of `inner_product` the mean of
    the honest. `coordinated`: all send one vector; of noise it is one draw, with the mean of their
    lengths, of a sign flip it is their mean the other way round.
    """
    if attack.kind == "none":
        return
    honest, theirs = rows[: -attack.workers], rows[-attack.workers :]
    match attack.kind:
        case "noise":
            shape = (1, rows.shape[1]) if attack.coordinated else tuple(theirs.shape)
            noise = torch.randn(shape, generator=generator) / rows.shape[1] ** 0.5
            lengths = theirs.norm(dim=1, keepdim=True)
            if attack.coordinated:
                lengths = lengths.mean(0, keepdim=True)
            theirs.copy_(noise * lengths * attack.scale)
        case "sign_flip":
            found = theirs.mean(0, keepdim=True) if attack.coordinated else theirs
            theirs.copy_(found * -attack.scale)
        case "inner_product":
            theirs.copy_(honest.mean(0, keepdim=True) * -attack.scale)
        case _:
            assert_never(attack)
