"""Studies of who exchanges what, and when: methods, H, the outer optimiser, overlap."""

from math import inf

from pww.lab.studies.recipe import Compared, ExcessRatio, Expected, Ordered, Recipe

RATES = "lab.tune.lr=[1e-3,3e-3,1e-2,3e-2]"

FIRST = Recipe(
    name="first",
    about="A first table and figure: every step against every 10 and every 50, on the toy.",
    common=("lab.seeds=3", "lab.steps=500", "lab.eval_every=50", RATES),
    lines=(("method=sync",), ("method=diloco", "diloco.inner_steps=10,50")),
    against="method=sync",
    expected=(
        Expected(
            "the fewer exchanges, the higher the loss",
            "toy, 2,000 steps: 2.277 < 2.578 < 2.706",
            Ordered(("method=sync", "method=diloco,H=10", "method=diloco,H=50")),
        ),
    ),
)

DENSE = "method=sync"
TOPK = "method=sync,codec=topk,keep=256,bits=16"
DEMO = "method=demo,keep=256"
H10 = "method=diloco,H=10"
H50 = "method=diloco,H=50"


def _toy(what: str, cell: str, mean: float, spread: float) -> Expected:
    """One row of the source's table of the toy."""
    return Expected(
        f"toy: {what}",
        f"{mean:.3f} ± {spread:.3f}",
        Compared("loss", cell, mean - spread, mean + spread),
        "figure",
    )


TOY = Recipe(
    name="toy",
    about="Five methods on the 5 k-parameter toy: 4 workers, 2,000 steps, four rates, three seeds.",
    common=("lab.seeds=3", RATES),
    lines=(
        ("method=sync",),
        ("method=sync", "codec=topk", "codec.keep=256", "codec.value_bits=16"),
        ("method=demo", "codec.keep=256"),
        ("method=diloco", "diloco.inner_steps=10,50"),
    ),
    against=DENSE,
    expected=(
        _toy("dense AdamW", DENSE, 2.277, 0.090),
        _toy("top-k 1/16 with error feedback", TOPK, 2.225, 0.039),
        _toy("DeMo", DEMO, 2.073, 0.047),
        _toy("DiLoCo, H = 10", H10, 2.578, 0.078),
        _toy("DiLoCo, H = 50", H50, 2.706, 0.094),
        Expected(
            "toy: DeMo is below dense",
            "-0.204",
            Compared("loss_difference", DEMO, -inf, 0.0, against=DENSE),
        ),
        Expected(
            "toy: top-k with error feedback is within noise of dense",
            "-0.052, with spreads of .039 and .090",
            Compared("loss_difference", TOPK, -0.15, 0.05, against=DENSE),
        ),
        Expected(
            "toy: dense, then DiLoCo with H = 10, then with H = 50",
            "2.277 < 2.578 < 2.706",
            Ordered((DENSE, H10, H50)),
        ),
    ),
)

LOW = "@0.0003"
H_SWEEP = Recipe(
    name="h-sweep",
    about="The sync interval, each H at five rates: what one rate says, and what tuning does.",
    common=("lab.seeds=3", "lab.steps=1920", "lab.tune.lr=[3e-4,1e-3,3e-3,1e-2,3e-2]"),
    lines=(("method=sync",), ("method=diloco", "diloco.inner_steps=1,4,16,64,240")),
    against="method=sync",
    expected=(
        Expected(
            "untuned (one low rate for all): DiLoCo with H = 16 beats synchronous",
            "an untuned sweep had DiLoCo beat synchronous",
            Compared("loss_difference", f"method=diloco,H=16{LOW}", -inf, 0.0, f"method=sync{LOW}"),
        ),
        Expected(
            "untuned: U-shaped, the left arm (H = 16 below H = 1)",
            "an untuned sweep looked U-shaped",
            Ordered((f"method=diloco,H=16{LOW}", f"method=diloco,H=1{LOW}")),
        ),
        Expected(
            "untuned: U-shaped, the right arm (H = 16 below H = 240)",
            "an untuned sweep looked U-shaped",
            Ordered((f"method=diloco,H=16{LOW}", f"method=diloco,H=240{LOW}")),
        ),
        Expected(
            "tuned: no U is left, loss rises with H",
            "tuning erased it",
            Ordered(("method=diloco,H=16", "method=diloco,H=64", "method=diloco,H=240")),
        ),
        Expected(
            "tuned: H = 16 against synchronous AdamW",
            "-0.012 nats (95 % -0.021 to -0.004, 11 seeds)",
            Compared("loss_difference", "method=diloco,H=16", -0.021, -0.004, "method=sync"),
            "figure",
        ),
        Expected(
            "tuned: H = 240 on a short budget costs",
            "+0.155 nats",
            Compared("loss_difference", "method=diloco,H=240", 0.0, inf, "method=sync"),
        ),
    ),
)

SHORT, LONG = "steps=960", "steps=3840"
H_BUDGET = Recipe(
    name="h-budget",
    about="H = 240 on a short budget and on four times as much, each tuned.",
    common=("lab.seeds=3", RATES, "lab.steps=960,3840"),
    lines=(("method=sync",), ("method=diloco", "diloco.inner_steps=240")),
    against=f"method=sync,{LONG}",
    expected=(
        Expected(
            "H = 240 on a short budget",
            "+0.155 nats",
            Compared(
                "loss_difference", f"method=diloco,H=240,{SHORT}", 0.0, inf, f"method=sync,{SHORT}"
            ),
        ),
        Expected(
            "four times the budget leaves a part of the gap",
            "about a quarter",
            ExcessRatio(
                cell=f"method=diloco,H=240,{LONG}",
                base=f"method=sync,{LONG}",
                against=f"method=diloco,H=240,{SHORT}",
                against_base=f"method=sync,{SHORT}",
                low=0.0,
                high=0.5,
            ),
        ),
    ),
)

OUTER = Recipe(
    name="outer",
    about="The outer step: Nesterov (0.7, 0.9) against federated averaging, each tuned.",
    common=("lab.seeds=3", RATES),
    lines=(("method=diloco,local", "diloco.inner_steps=10,50"),),
    against="method=local,H=10",
    expected=tuple(
        Expected(
            f"Nesterov is below averaging at H = {h}",
            "DiLoCo's paper: Nesterov is the best outer optimiser",
            Compared("loss_difference", f"method=diloco,H={h}", -inf, 0.0, f"method=local,H={h}"),
        )
        for h in (10, 50)
    ),
)

OVERLAP = Recipe(
    name="overlap",
    about="An outer step late by one inner step, by a round naively, and eagerly, each tuned.",
    common=("lab.seeds=3", RATES, "method=diloco"),
    lines=(
        ("method.delay=0,1",),
        ("method.delay=1", "method.eager=true"),
        ("method.overlap_steps=1",),
    ),
    against="delay=0",
    expected=(
        Expected(
            "one inner step late is free",
            "0",
            Compared("loss_difference", "overlap_steps=1", -0.03, 0.03, "delay=0"),
        ),
        Expected(
            "one outer step late, naive",
            "+0.34 nats at 500M",
            Compared("loss_difference", "delay=1", 0.0, inf, "delay=0"),
        ),
        Expected(
            "eager costs less than naive",
            "+0.02 against +0.34 at 500M (and worse on tiny models)",
            Compared("loss_difference", "delay=1,eager=true", -inf, 0.0, "delay=1"),
        ),
    ),
)

IDENTITY = Recipe(
    name="identity",
    about="One worker and H = 1 is plain training, bit for bit.",
    common=("lab.seeds=3", "lab.steps=100", "lab.eval_every=100", "workers=1"),
    lines=(("method=sync",), ("method=local", "diloco.inner_steps=1")),
    against="method=sync",
    expected=(
        Expected(
            "M = 1, H = 1 is synchronous training",
            "exact",
            Compared("loss_difference", "method=local,H=1", 0.0, 0.0, "method=sync"),
            "figure",
        ),
    ),
)

RECIPES = (FIRST, TOY, H_SWEEP, H_BUDGET, OUTER, OVERLAP, IDENTITY)
